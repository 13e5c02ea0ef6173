"""Services of a running devnet, the errors of one that cannot start, no process that survives one, and environments.

`python -m tests.install.environments` runs all environments."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from eth_account import Account
from nacl.public import PrivateKey

import devnet
from coordinatord.chain.relayer.fees import DEVNET_CHAIN_IDS
from devnet import client_environment
from svc.client import Client
from tests.e2e.conftest import Market, Start, descendants, free_ports, wait_gone
from tests.install.environments.quick import QUICK_CASES
from tests.install.environments.room import Case, room


def test_manifest_holds_all_that_a_program_needs_to_attach(market: Market) -> None:
    described = json.loads((market.state / "devnet.json").read_text())
    command = market.devnet.process.args
    assert isinstance(command, list)
    assert described["base_url"] == f"http://127.0.0.1:{command[command.index('--api-port') + 1]}"
    assert {"gateway", "rpc_url", "metrics_url", "database_url"} < described.keys()
    assert described["pin_store"].keys() == {"kind", "endpoint", "key", "secret", "bucket", "region"}
    assert described["addresses"].keys() == {
        *("chainId", "deployBlock", "jobRegistry", "providerRegistry", "askRegistry"),
        *("paytoken", "paymentTokenDecimals", "tokenDomain"),
    }
    assert [model.keys() for model in described["models"]] == [{"id", "model_id", "endpoint"}] * 3
    roles = [account["role"] for account in described["accounts"]]
    assert {role: roles.count(role) for role in ("admin", "relayer", "client", "provider")} == {
        **{"admin": 1, "relayer": 2},
        **{"client": 4, "provider": 3},
    }
    for account in described["accounts"]:
        assert Account.from_key(account["private_key"]).address == account["address"]
        if account["role"] == "provider":
            secret = PrivateKey(bytes.fromhex(account["box_secret"][2:]))
            assert "0x" + bytes(secret.public_key).hex() == account["box_key"]
    ports = {urlsplit(described[url]).port for url in ("base_url", "gateway", "rpc_url", "metrics_url", "database_url")}
    for port in ports:  # its keys are public, so it must not listen on other addresses
        with socket.socket() as elsewhere:
            assert elsewhere.connect_ex(("127.0.0.2", port)) != 0
    assert (market.state / "devnet.json").stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_address_book_of_another_devnet_is_refused(market: Market, start: Start, tmp_path: Path) -> None:
    other = start("--automine")
    chain_id = other.wait_up()["addresses"]["chainId"]
    assert chain_id in DEVNET_CHAIN_IDS
    exported = dict(
        line.split()[1].split("=", 1) for line in client_environment.export_commands(other.state).splitlines()
    )
    assert exported["DEVNET_CHAIN_ID"] == str(chain_id)
    exported["SVC_ADDRESSES_FILE"] = market.environment["SVC_ADDRESSES_FILE"]
    program = [str(Path(sys.executable).with_name("svc")), "quote", "demo/text-small", "hello", "--window", "1h"]
    refused = subprocess.run(program, env={**os.environ, **exported}, capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert f"chain id: expected 31337, reported {chain_id}" in refused.stderr


def interval_of(url: str) -> object:
    """Return the configured seconds between blocks."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "anvil_getIntervalMining", "params": []}
    return httpx.post(url, json=request, trust_env=False).json()["result"]


def test_blocks_come_with_transactions_where_that_was_chosen(market: Market) -> None:
    assert interval_of(json.loads((market.state / "devnet.json").read_text())["rpc_url"]) is None


@pytest.mark.long
def test_blocks_come_by_the_clock(start: Start) -> None:
    running = start("--block-time", "1")
    assert interval_of(running.wait_up()["rpc_url"]) == 1
    running.end(signal.SIGTERM)


def test_chosen_port_that_is_taken_is_answered_with_one_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        refused = start("--database-port", str(number))
        assert refused.process.wait(60) == 1
    (line,) = refused.errors().splitlines()
    assert line.startswith(f"devnet: port {number} for the database is in use")
    assert "--database-port" in line


def test_missing_chain_program_is_answered_with_how_to_get_it(tmp_path: Path) -> None:
    packages = Path(devnet.__path__[0]).parent
    for package in ("devnet", "common"):
        ignored = shutil.ignore_patterns("node_modules", "cache", "out")
        shutil.copytree(packages / package, tmp_path / package, ignore=ignored)
    ended = subprocess.run(
        [sys.executable, "-m", "devnet.cli", "up", *free_ports()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("devnet: anvil is not installed")
    assert "make setup" in line


@pytest.mark.long
def test_demo_uses_every_part_and_ends_by_itself(start: Start) -> None:
    demo = start("--automine", command="demo")
    said, errors = demo.process.communicate(timeout=120)
    assert (demo.process.returncode, errors) == (0, "")
    for part in ("chain:", "market:", "database:", "pin store:", "open job: cost", "designated job: cost"):
        assert f"\n{part}" in said
    assert len(re.findall("^batch: line .* was answered .*; cost ", said, re.MULTILINE)) == 20
    assert "\nclient: 22 jobs were bought and opened" in said
    assert not (demo.state / "devnet.json").exists()


@pytest.mark.long
def test_real_model_answers_texts_and_embeddings(start: Start) -> None:
    up = start("--automine", "--model", "smollm")
    up.wait_up()
    exported = dict(line.split()[1].split("=", 1) for line in client_environment.export_commands(up.state).splitlines())
    environment = {**os.environ, **{name: shlex.split(value)[0] for name, value in exported.items()}}

    def run(model: str, question: str) -> str:
        command = (sys.executable, "-m", "svc", "run", model, question, "--window", "1h")
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout

    assert "Tokyo" in run("demo/text-small", "What is the capital of Japan?")
    vectors = [json.loads(run("demo/embed-small", text))["data"][0]["embedding"] for text in ("blue", "red")]
    assert vectors[0] != vectors[1]
    assert len(vectors[0]) == len(vectors[1]) > 100

    async def stream() -> list[dict[str, object]]:
        async with Client(environment=environment) as client, client.tabs.open("demo/text-small") as tab:
            answer = await tab.request({"input": "What is the capital of Japan?"})
            return [chunk async for chunk in answer]

    assert len(anyio.run(stream)) > 3


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_end_is_obeyed_in_order(start: Start, number: signal.Signals) -> None:
    devnet = start()
    manifest = devnet.wait_up()
    below = descendants(devnet.process.pid)
    assert below >= set(manifest["processes"].values())
    assert devnet.end(number) == 0
    assert devnet.errors() == ""
    wait_gone(below)
    assert not devnet.state.joinpath("devnet.json").exists()


def test_devnet_killed_while_it_starts_leaves_no_process(start: Start) -> None:
    devnet = start()
    assert devnet.process.stdout is not None
    devnet.process.stdout.readline()  # its services are starting now
    while not (below := descendants(devnet.process.pid)):
        pass
    devnet.end(signal.SIGKILL)
    wait_gone(below)


@pytest.mark.long
@pytest.mark.parametrize("service", ["anvil", "postgres", "pin store", "gateway"])
def test_service_that_dies_takes_the_devnet_down_with_one_line(start: Start, service: str) -> None:
    devnet = start()
    manifest = devnet.wait_up()
    below = descendants(devnet.process.pid)
    os.kill(manifest["processes"][service], signal.SIGKILL)
    assert devnet.process.wait(60) == 1
    (line,) = devnet.errors().splitlines()
    assert line.startswith(f"devnet: {service} ended unexpectedly")
    wait_gone(below)


@pytest.mark.long
def test_second_devnet_in_a_directory_is_refused(start: Start) -> None:
    first = start()
    first.wait_up()
    second = start()
    assert second.process.wait(60) == 1
    (line,) = second.errors().splitlines()
    assert f"another devnet (process {first.process.pid})" in line
    assert "--state-dir" in line
    assert first.end(signal.SIGTERM) == 0


@pytest.mark.long
@pytest.mark.timeout(300)  # several start two devnets one after the other
@pytest.mark.parametrize("case", QUICK_CASES, ids=lambda case: case.name)
def test_devnet_holds_in(case: Case) -> None:
    if (reason := case.why_not()) is not None:
        pytest.skip(reason)
    with room() as place:
        case.run(place)
