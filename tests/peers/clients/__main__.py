"""Run third-party clients of OpenAI's API against `svc serve`, in a local market with a real model.

    python -m tests.peers.clients [--only NAME,...]

A provider serves the model twice, by its chat completions and by its responses route. Each client is tried with both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import attrs
import httpx

from common.api.market import ENDPOINT_KEYWORD
from devnet.accounts import DevWallet
from devnet.app import run_devnet
from devnet.child import Child, Program, run_program
from devnet.contracts import connect_to_chain, contract_at
from devnet.model import running_model
from devnet.ports import pick_free
from devnet.settings import DevnetSettings
from devnet.world import Devnet
from tests.support.requirements import npm, require

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
CHAT, TEXT = "demo/chat-small", "demo/text-small"
CHAT_ID: Final = 4
RATES: Final = (200_000, 400_000)
_SECONDS: Final = 540


@attrs.frozen
class Trial:
    """`server` is the address that clients use, with `key`."""

    python: Path
    server: str
    key: str

    def commands(self, folder: Path) -> dict[str, tuple[Sequence[str], Mapping[str, str]]]:
        """Return each client's command, and the environment variables that it needs."""
        asked = {name: (str(self.python), str(HERE / f"try_{name}.py"), CHAT, TEXT) for name in _IN_PYTHON}
        commands: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
            name: (line, {}) for name, line in asked.items()
        }
        listed = [{"model_id": "sealed", "model_name": CHAT, "api_base": self.server, "api_key_name": "svc"}]
        (folder / "extra-openai-models.yaml").write_text(json.dumps(listed))  # JSON is valid YAML
        llm = (str(self.python.with_name("llm")), "-m", "sealed", "--key", self.key, "-o", "max_tokens", "8")
        commands["llm"] = ((*llm, "Name a city."), {"LLM_USER_PATH": str(folder)})
        node = shutil.which("node")
        if node is not None:
            commands["node"] = ((node, str(HERE / "openai.mjs"), CHAT, TEXT), {})
        return commands

    async def tell(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> bool:
        environment = {**os.environ, **more, "OPENAI_BASE_URL": self.server, "OPENAI_API_KEY": self.key}
        began = time.monotonic()
        ran = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        )
        right = ran.returncode == 0 and bool(ran.stdout.strip())
        print(f"{'right' if right else 'WRONG':6} {name} ({time.monotonic() - began:.0f} s)", flush=True)
        for line in (ran.stdout if right else ran.stdout + ran.stderr[-3000:]).splitlines():
            print(f"       {line}", flush=True)
        return right


_IN_PYTHON: Final = ("openai", "langchain", "pydantic_ai")


async def add_chat_model(up: Devnet) -> None:
    """Add a chat model to the usual local market."""
    schema = json.dumps({ENDPOINT_KEYWORD: "/v1/chat/completions", "type": "object"})
    async with connect_to_chain(up.world.anvil.rpc_url) as chain:
        registry = contract_at(chain, "JobRegistry", up.world.market.address_book["jobRegistry"])
        sent = registry.functions.setModel(CHAT_ID, CHAT, True, "demo", schema)
        await sent.transact({"from": up.world.wallets.admin.address})
    async with httpx.AsyncClient(base_url=up.coordinator.base_url, trust_env=False) as http:
        with anyio.fail_after(60):
            while (await http.get(f"/v1/models/{CHAT}")).status_code != 200:  # noqa: ASYNC110 - no event over HTTP
                await anyio.sleep(0.2)


def provider_config(up: Devnet, folder: Path, model_server: str, metrics_port: int) -> Path:
    book = folder / "addresses.json"
    book.write_text(json.dumps(up.world.market.address_book))
    rate_in, rate_out = RATES
    lines = [
        f"state_directory = {json.dumps(str(folder / 'state'))}",
        "[coordinator]",
        f"url = {json.dumps(up.coordinator.base_url)}",
        f"addresses_file = {json.dumps(str(book))}",
        "[gateway]",
        f"urls = [{json.dumps(up.world.pins.gateway)}]",
        "[keys]",
        'wallet = "$SVCD_WALLET_KEY"',
        'box = "$SVCD_BOX_KEY"',
        "[metrics]",
        f"port = {metrics_port}",
        "[limits]",
        "shutdown_grace_seconds = 2",
    ]
    for name, api in ((TEXT, "responses"), (CHAT, "chat")):
        lines += ["[[model]]", f'name = "{name}"', 'serves = ["text"]', "slots = 2", "margin_seconds = 10"]
        lines += ["[[model.ask]]", "sla_seconds = 3600"]
        lines += [f'rate_in = "{rate_in}"', f'rate_out = "{rate_out}"', "[model.backend]", 'kind = "openai"']
        lines += [f'api = "{api}"', f'base_url = "{model_server}"', "stream = false", "check_name = false"]
    path = folder / "svcd.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@asynccontextmanager
async def providing(up: Devnet, wallet: DevWallet, model_server: str, folder: Path) -> AsyncIterator[int]:
    """Run a provider with the model, and yield its id. The market's own provider only echoes."""
    port = pick_free()
    config = provider_config(up, folder, model_server, port)
    keys = {"SVCD_WALLET_KEY": wallet.private_key, "SVCD_BOX_KEY": "0x" + wallet.box_secret.hex()}
    line, log = (sys.executable, "-m", "svcd", "run", "--config", str(config)), folder / "svcd.log"
    program = Program("provider of the model", line, log, environment=keys, stop_seconds=15)
    provider = up.world.market.provider_ids[wallet.address]
    async with (
        run_program(program) as child,
        httpx.AsyncClient(base_url=up.coordinator.base_url, trust_env=False) as http,
    ):

        async def selling() -> bool:
            for model_id in (1, CHAT_ID):
                probe = {"model_id": model_id, "sla_secs": 3600, "units_in": 1, "units_out": 1}
                found = (await http.post("/v1/jobs", json=probe)).json()["candidates"]
                if str(provider) not in [one["provider_id"] for one in found]:
                    return False
            return True

        await child.wait_until(selling, seconds=90)
        yield provider


@asynccontextmanager
async def serving(up: Devnet, provider: int, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Run `svc serve`, buying from this provider. Yield its address and key."""
    port, settings = pick_free(), folder / "serve.toml"
    settings.write_text(f"[buying]\nproviders = [{provider}]\n[budget]\nper_day = 1000000000\n")
    settings.chmod(0o600)
    environment = {
        "SVC_BASE_URL": up.coordinator.base_url,
        "SVC_PIN_GATEWAY": up.world.pins.gateway,
        "SVC_WALLET_KEY": up.world.wallets.with_role("client")[0].private_key,
        "SVC_KNOWN_MARKETS": "",
        "SVC_CONFIG": "",
    }
    words = ("serve", "--config", str(settings), "--state", str(folder / "serve"), "--port", str(port))
    line = (str(Path(sys.executable).with_name("svc")), *words)
    program = Program("svc serve", line, folder / "serve.log", environment=environment, stop_seconds=15)
    server = f"http://127.0.0.1:{port}/v1"
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as http:
        await _answers(child, http, f"{server}/models")
        yield server, (folder / "serve" / "serve.key").read_text().strip()


async def _answers(child: Child, http: httpx.AsyncClient, url: str) -> None:
    async def up() -> bool:
        try:
            return (await http.get(url)).status_code < 500
        except httpx.TransportError:
            return False

    await child.wait_until(up, seconds=60)


async def main(python: Path, only: Sequence[str]) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            up = await stack.enter_async_context(
                run_devnet(DevnetSettings(state_dir=folder / "devnet"), lambda line: print(f"       {line}"))
            )
            model = await stack.enter_async_context(running_model(folder))
            await add_chat_model(up)
            wallet = up.world.wallets.with_role("provider")[1]
            (folder / "provider").mkdir()
            provided = providing(up, wallet, model.base_url, folder / "provider")
            provider = await stack.enter_async_context(provided)
            server, key = await stack.enter_async_context(serving(up, provider, folder))
            trial = Trial(python, server, key)
            for client, (command, more) in trial.commands(folder).items():
                if not only or client in only:
                    wrong += not await trial.tell(client, command, more)
    print(f"{wrong} wrong" if wrong else "every client is at home")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.peers.clients")
    parser.add_argument("--only", default="", help="clients, comma-separated: openai,langchain,pydantic_ai,llm,node")
    chosen = parser.parse_args()
    names = [each for each in chosen.only.split(",") if each]
    require(".model/.ready", ".venv-serve-clients/.ready", *npm("peers/strangers/openai"))
    sys.exit(anyio.run(main, ROOT / ".venv-serve-clients" / "bin" / "python", names))
