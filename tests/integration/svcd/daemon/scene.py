"""A coordinator with a client and a provider's daemon, which tests start, kill and restart."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs

from common.address_book import AddressBook
from common.box import PublicKey, SecretKey
from common.container import seal
from common.envelope import Envelope, ResultBody
from common.sealed_result import open_result
from devnet.ports import pick_free
from devnet.provider import key_variables, write_config
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.support.faults.holding_proxy import HoldingProxy

MODEL: Final = "demo/text-small"
# A fake model server that hangs while a file exists, and records that it was called. For "large" it returns a result
# too large for a settle. The file "runs" lists the ids of the answered work.
_PROGRAM: Final = """\
import json, pathlib, sys, time
work, here = json.load(sys.stdin), pathlib.Path(__file__).parent
(here / "reached").touch()
while work["input"]["input"] == "hang" and (here / "hang").exists():
    time.sleep(0.05)
with (here / "runs").open("a") as runs:
    runs.write(work["job_id"] + "\\n")
large = work["input"]["input"] == "large"
json.dump({"output": "x" * 16_000_000 if large else work["input"], "completion_tok": 3}, sys.stdout)
"""


@attrs.define
class Scene:
    world: World
    proxy: HoldingProxy
    client: Party
    provider: Party  # a party with the daemon's wallet
    escrow: bytes  # key to which open jobs are sealed
    database_url: str
    book: AddressBook
    directory: Path
    posted: list[str] = attrs.field(factory=list)
    config: Path = attrs.field(init=False)
    metrics_port: int = attrs.field(factory=pick_free)

    def __attrs_post_init__(self) -> None:
        self.config = write_config(
            self.directory,
            coordinator_url=self.proxy.url,
            gateway=self.proxy.url,
            address_book=self.world.market.address_book,
            metrics_port=self.metrics_port,
        )
        program = self.directory / "model.py"
        program.write_text(_PROGRAM)
        command = f'kind = "exec"\nconfine = false\ncommand = ["{sys.executable}", "-I", "-S", "{program}"]'
        written = self.config.read_text().replace('kind = "echo"', command).replace("slots = 8", "slots = 12", 1)
        self.config.write_text(written)

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "svcd", name, "--config", str(self.config)]

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], **key_variables(self.world.wallets.demo_provider)}

    async def run(self, name: str) -> "subprocess.CompletedProcess[str]":
        """Run in a thread, because the proxy uses this loop."""

        def run() -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                self.command(name), env=self.environment, capture_output=True, text=True, timeout=180, check=False
            )

        return await anyio.to_thread.run_sync(run)

    @contextmanager
    def daemon(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the daemon until the block ends, or until it is killed."""
        with (self.directory / "svcd.log").open("ab") as log:
            process = subprocess.Popen(self.command("run"), env=self.environment, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        return (self.directory / "svcd.log").read_text()

    async def post(
        self, word: str = "word", *, designated: bool = True, plaintext: bytes | None = None, **terms: int
    ) -> str:
        """Post a job of one word, for this provider or for all."""
        provider_id = self.world.market.provider_ids[self.world.wallets.demo_provider.address]
        recipient = PublicKey(self.client.box_key if designated else self.escrow)
        content = plaintext if plaintext is not None else self.envelope({"input": word})
        owner = self.client.wallet.address
        container = seal(recipient, self.book.chain_id, self.book.job_registry, owner, content)
        answer = await self.client.post(container=container, designated=provider_id if designated else 0, **terms)
        self.posted.append(answer["job_id"])
        return self.posted[-1]

    def envelope(self, model_input: dict[str, Any]) -> bytes:
        return Envelope(self.client.wallet.address, MODEL, model_input, self.result_key).encode()

    @property
    def runs(self) -> list[str]:
        """Return the ids of the work that the model has answered."""
        file = self.directory / "runs"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def result_key(self) -> PublicKey:
        return PublicKey(self.world.wallets.demo_provider.box_key)  # a key whose private half the tests have

    async def ended(self, job: str) -> dict[str, Any]:
        async def over() -> bool:
            return (await self.row(job))["status"] not in ("queued", "in_progress")

        await until(over)
        return await self.row(job)

    async def row(self, job: str) -> dict[str, Any]:
        row: dict[str, Any] = (await self.client.http.get(f"/v1/jobs/{job}")).json()
        return row

    async def opened(self, row: dict[str, Any]) -> ResultBody:
        sealed = (await self.client.http.get(f"{self.proxy.url}/ipfs/{row['result_cid']}")).content
        from_secret = self.world.wallets.demo_provider.box_secret
        raw = bytes.fromhex(row["id"][2:])
        return ResultBody.parse(
            open_result(SecretKey(from_secret), self.book.chain_id, self.book.job_registry, raw, sealed)
        )


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 40
    while not await holds():
        assert time.monotonic() < deadline, "it did not come to that"
        await anyio.sleep(0.03)


async def terminated(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    return await anyio.to_thread.run_sync(lambda: process.wait(120))
