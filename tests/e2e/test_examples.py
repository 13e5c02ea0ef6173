"""Run every program in examples/ as its page says, in one devnet with a real language model."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devnet import accounts
from devnet.ports import pick_free
from devnet.provider import key_variables, write_config
from svc import SyncClient
from tests.e2e.conftest import Market, client_variables, launched

EXAMPLES = Path(__file__).parents[2] / "examples"
LANGCHAIN_PYTHON = EXAMPLES.parent / ".venv-serve-clients" / "bin" / "python"
MAX_LINES = 60
SECOND_PROVIDER = 2
JOB_ID = "0x[0-9a-f]{64}"
PRINTED = {
    "buy_one_job": r".*Tokyo.*\n\d+ tokens from provider 1\npaid 0\.\d{6} Dev Dollar\n",
    "buy_a_batch": r"batch_\w+ completed\nJapan: .*Tokyo.*\nPeru: .+\nNorway: .+\n",
    "async_and_sync": r"sync: .+\n(async: .+\n){3}",
    "bid_openly": (
        r"provider 1 asks 100000 in, 200000 out .*\n(0x\w{8}): .*asks more.*\n\1: cancelled\n"
        r"(0x\w{8}): at most \d+ base units, 1 .*\n\2: completed by provider 1: .+\n"
    ),
    "prove_a_job": r"receipt of \d+ bytes\n(.*\n)+payment: at most \d+ base units .*\n(.*\n)+ended: JobSettled, .*\n",
    "receive_webhooks": rf"(whk_\w+) receives job\.settled\njob\.settled of {JOB_ID}\n.+\n",
    "report_market": (
        r"ready: True at block \d+\njobs: \d+ open, .*\nprovider 1: .*\nprovider 2: .*\nprovider 3: .*\n"
        r"relayer 0x\w{8}: [\d.]+ ether\nno problems\n"
    ),
}
PRINTED_BY_OPENAI_CLIENTS = {
    "use_openai": rf".*Tokyo.*\n.+\n{JOB_ID} \d+ tokens\n2 vectors of \d\d+ numbers\n",
    "use_langchain": r"Japan: .*Tokyo.*\nItaly: .+\n",
}
PRINTED_BY_TESTS_OF_THEIR_OWN = {"provider_backend"}


def test_page_lists_every_short_program() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    rows = re.findall(r"^\| \[`(\w+\.py)`\]\(\1\) \| .+ \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(programs)
    assert {f"{name}.py" for name in {*PRINTED, *PRINTED_BY_OPENAI_CLIENTS, *PRINTED_BY_TESTS_OF_THEIR_OWN}} == programs
    assert {
        name: count for name in programs if (count := len((EXAMPLES / name).read_text().splitlines())) >= MAX_LINES
    } == {}


@pytest.fixture(scope="module")
def model_market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    state = tmp_path_factory.mktemp("examples") / "state"
    devnet = launched(state, "--automine", "--model", "smollm")
    with devnet.process:
        described = devnet.wait_up()
        yield Market(devnet, {**client_variables(state), "METRICS_URL": described["metrics_url"]})
        devnet.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def openai_variables(model_market: Market, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    state = tmp_path_factory.mktemp("serve")
    command = [str(Path(sys.executable).with_name("svc")), "serve", "--port", "0", "--state", str(state)]
    environment = {**os.environ, **model_market.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base_url = server.stdout.readline().split()[1]
        yield {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": (state / "serve.key").read_text().strip()}
        server.terminate()


def run(name: str, environment: dict[str, str], python: str = sys.executable) -> str:
    ended = subprocess.run(
        [python, str(EXAMPLES / f"{name}.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_results(model_market: Market, name: str) -> None:
    printed = run(name, model_market.environment)
    assert re.fullmatch(PRINTED[name], printed, re.DOTALL), printed


@pytest.mark.long
@pytest.mark.parametrize("name", PRINTED_BY_OPENAI_CLIENTS)
def test_openai_client_prints_answers(model_market: Market, openai_variables: dict[str, str], name: str) -> None:
    python = LANGCHAIN_PYTHON if name == "use_langchain" else Path(sys.executable)
    if not python.exists():
        pytest.skip("LangChain is not installed: python -m tests.peers.clients")
    printed = run(name, {**model_market.environment, **openai_variables}, str(python))
    assert re.fullmatch(PRINTED_BY_OPENAI_CLIENTS[name], printed, re.DOTALL), printed


@pytest.mark.long
def test_provider_sells_answers_of_a_program(model_market: Market, tmp_path: Path) -> None:
    described = json.loads((model_market.state / "devnet.json").read_text())
    config = write_config(
        tmp_path,
        coordinator_url=described["base_url"],
        gateway=described["gateway"],
        address_book=described["addresses"],
        metrics_port=pick_free(),
        rpc_url=described["rpc_url"],
    )
    program = [sys.executable, str(EXAMPLES / "provider_backend.py")]
    backend = f'kind = "exec"\ncommand = {json.dumps(program)}'
    config.write_text(config.read_text().replace('kind = "echo"', backend))
    command = [sys.executable, "-m", "svcd", "run", "--config", str(config)]
    environment = {**os.environ, **key_variables(accounts.derive_wallets().with_role("provider")[SECOND_PROVIDER - 1])}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as provider:
        assert provider.stderr is not None
        assert any('"asks published"' in line for line in provider.stderr)
        with SyncClient(environment=model_market.environment, on_first_use=lambda _: None) as client:
            order = {"input": "a rose is a rose", "max_output_tokens": 2}
            result = client.run(
                "demo/text-small", order, window="1h", provider=SECOND_PROVIDER, timeout=120, final=True
            )
        assert (result.text, result.job.svc.completion_tok) == ("a 2\nrose 2", 2)
        provider.terminate()
        assert provider.wait(60) == 0
