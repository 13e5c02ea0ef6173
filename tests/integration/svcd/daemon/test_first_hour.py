"""Type the page for new providers into a terminal, with a market running. The output must match the page."""

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import attrs
import httpx
import pytest
from eth_utils.address import to_checksum_address

from common.address_book import AddressBook
from common.box import SecretKey
from common.container import seal
from common.envelope import Envelope
from common.scalars import hex_of
from common.secp256k1 import Wallet
from devnet.contracts import connect_to_chain, contract_at
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.svcd.daemon.conftest import staged
from tests.integration.svcd.daemon.scene import Scene, until

PAGE: Final = Path(__file__).parents[4] / "docs" / "providers" / "quickstart.md"
MODEL: Final = "demo/text-small"
SHOWN: Final = {
    "coordinator": "https://coordinator.example",
    "node": "https://node.example",
    "model": "http://127.0.0.1:8000",
    "metrics": "9403",
}
# Values that differ between runs: keys, addresses, hashes, ports and paths, then every number.
VOLATILE: Final = (
    (re.compile(r"0x[0-9a-f]{40,}|0x[0-9a-f]{4}…[0-9a-f]{4}"), "0x…"),
    (re.compile(r"https?://(127\.0\.0\.1:\d+|(coordinator|node|gateway)\.example)"), "http://…"),
    (re.compile(r"/\S*/provider/"), "/…/"),
    (re.compile(r"[+-]?\d+(\.\d+)?"), "#"),
    (re.compile(r"#(, #)+"), "#"),
    (re.compile(r" +"), " "),
)


@attrs.frozen
class Typed:
    """One command of the page, its expected output, and the answers to its questions."""

    command: str
    printed: str


def recording() -> list[Typed]:
    chapter = PAGE.read_text(encoding="utf-8").partition("\n## The first hour\n")[2].partition("\n## ")[0]
    text = "".join(re.findall(r"^```console\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL))
    return [Typed(*each.partition("\n")[::2]) for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]


def alike(text: str) -> list[str]:
    for pattern, instead in VOLATILE:
        text = pattern.sub(instead, text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [line for line, _ in itertools.groupby(lines)]  # one for each of a model's windows


class ModelServer(BaseHTTPRequestHandler):
    """One text model, as vLLM would serve it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "text-small", "object": "model", "owned_by": "vllm"}]}
        known = {"/v1/models": json.dumps(models).encode(), "/metrics": b"vllm:num_requests_running 0\n"}
        self._answer(known.get(self.path, b"{}"), 200 if self.path in known else 404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": "Hello! How can I help you?"}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "model": asked["model"],
            "choices": [{"index": 0, "message": message}],
        }
        self._answer(json.dumps(answer | {"usage": {"completion_tokens": 8}}).encode(), 200)

    def _answer(self, body: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def model_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@attrs.define
class FirstHour:
    """A provider's folder, and the real addresses that replace those on the page."""

    scene: Scene
    folder: Path
    real: dict[str, str]
    running: "subprocess.Popen[bytes] | None" = None

    def typed(self, one: Typed) -> str:
        """Type one command. Return the terminal's output."""
        shown = [self._real(one.command), *one.printed.splitlines()]
        asked = [line for line in shown[1:] if re.match(r"\d/6 |send this transaction\?", line)]
        answers = [self._real(found[1] or "") for line in asked if (found := re.search(r":(?: (\S*))?$", line))]
        terminal, end = pty.openpty()
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "200"}
        process = subprocess.Popen(
            ["bash", "-c", shown[0]],
            cwd=self.folder,
            env=environment,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        text = b""
        while piece := _read(terminal):
            text += piece
            if re.search(rb": $", text):
                os.write(terminal, (answers.pop(0) if answers else "").encode() + b"\n")
        os.close(terminal)
        printed = text.decode().replace("\r\n", "\n")
        ends = {"svcd: ": 1, "missing ": 3}
        assert process.wait(120) == next((ends[word] for word in ends if f"\n{word}" in f"\n{printed}"), 0), printed
        return printed

    def _real(self, text: str) -> str:
        for name, address in self.real.items():
            text = text.replace(SHOWN[name], address)
        return text

    # Other people's actions between the page's commands.

    async def fund(self) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": "anvil_setBalance", "params": [self.address, hex(10**18)]}
        async with httpx.AsyncClient(trust_env=False) as http:
            (await http.post(self.scene.world.anvil.rpc_url, json=request)).raise_for_status()

    async def admit(self) -> None:
        world = self.scene.world
        async with connect_to_chain(world.anvil.rpc_url) as chain:
            registry = contract_at(chain, "ProviderRegistry", world.market.providers)
            provider_id = await registry.functions.providerIdOf(self._checksummed).call()
            for method, value in (("setListed", True), ("setCeiling", 64), ("setAllowAllModels", True)):
                await chain.send(registry, world.wallets.admin.address, method, provider_id, value)

    def start(self) -> None:
        command = [sys.executable, "-m", "svcd", "run", "--config", "provider/svcd.toml"]
        with (self.folder / "svcd.log").open("ab") as log:
            self.running = subprocess.Popen(command, cwd=self.folder, env={"PATH": os.environ["PATH"]}, stderr=log)

    async def buy(self) -> None:
        """Order from this provider, and wait until the job is settled."""
        scene, client = self.scene, self.scene.client
        box = SecretKey(bytes.fromhex((self.folder / "provider/credentials/box.key").read_text().strip()[2:]))
        envelope = Envelope(client.wallet.address, MODEL, {"input": "hello"}, scene.result_key)
        container = seal(
            box.public, scene.book.chain_id, scene.book.job_registry, client.wallet.address, envelope.encode()
        )

        async def listed() -> bool:
            told = (await client.http.get("/evm/providers?limit=1000")).json()["providers"]
            return any(each["operator"] == self.address and each["listed"] for each in told)

        await until(listed)
        told = (await client.http.get("/evm/providers?limit=1000")).json()["providers"]
        (provider,) = [each for each in told if each["operator"] == self.address]
        posted = await client.post(container=container, designated=int(provider["provider_id"]))
        assert (await scene.ended(posted["job_id"]))["status"] == "completed", (self.folder / "svcd.log").read_text()

    @property
    def address(self) -> str:
        secret = (self.folder / "provider/credentials/wallet.key").read_text().strip()
        return hex_of(Wallet(bytes.fromhex(secret[2:])).address)

    @property
    def _checksummed(self) -> Any:
        return to_checksum_address(self.address)


def _read(terminal: int) -> bytes:
    """Read from the terminal. At its end, Linux reports a missing device, and this returns nothing."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


@pytest.fixture
async def first_hour(world: World, database_url: str, book: AddressBook, tmp_path: Path) -> AsyncIterator[FirstHour]:
    with model_server() as model:
        async with staged(world, database_url, book, tmp_path, GATEWAY_URL=world.pins.gateway) as (scene, http):
            real = {"coordinator": str(http.base_url).rstrip("/"), "node": world.anvil.rpc_url, "model": model}
            real["metrics"] = str(pick_free())
            hour = FirstHour(scene, tmp_path, real)
            yield hour
            if hour.running is not None:
                hour.running.kill()
                await anyio.to_thread.run_sync(hour.running.wait)


@pytest.mark.long
async def test_page_of_the_first_hour_is_what_a_terminal_shows(first_hour: FirstHour) -> None:
    between = {"register --wait": first_hour.admit, "earnings": first_hour.buy}
    commands = recording()
    assert len(commands) >= 7
    for number, one in enumerate(commands):
        for word, act in between.items():
            if all(part in one.command.split() for part in word.split()):
                await act()
        if "svcd run" in one.command:
            first_hour.start()
            continue
        shown = await anyio.to_thread.run_sync(first_hour.typed, one)
        assert alike(shown) == alike(one.printed), f"command {number}: {one.command}\n{shown}"
        if "send 0." in shown:
            await first_hour.fund()
