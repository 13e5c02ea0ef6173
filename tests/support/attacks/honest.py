"""Honest buyers in a separate process, so that they wait only for the market and not for the attackers' CPU.

    python -m tests.support.attacks.honest

Reads one line of JSON from standard input: the coordinator, its gateways, its address book, the buyers' keys, and the
orders. After a line `go N` every buyer buys one job after the other, at least N, and reads the market's routes. After
`stop` each finishes its current job, and one line of JSON reports the times and jobs since `go`. Exits when standard
input is closed, or with 1 and the reason on standard error when a promise to a buyer is broken.
"""

import json
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import cycle
from typing import Any, Final

import anyio
import attrs
import httpx
from anyio.streams.text import TextReceiveStream, TextSendStream

from common.address_book import AddressBook
from svc.client import Client
from svc.wire.transport import REQUEST_TIMEOUT_S
from tests.soak.answering import plain_http

_READ: Final = ("/v1/models", "/evm/jobs?state=Open&limit=50", "/evm/providers?limit=50", "/evm/jobs?limit=50")
_PAUSE: Final = 0.05
_JOB_TIMEOUT_S: Final = 30.0  # half of the window of the job


@attrs.define
class Times:
    """Seconds of each honest post, job (from order to mined result) and read."""

    posts: list[float] = attrs.field(factory=list)
    jobs: list[float] = attrs.field(factory=list)
    reads: list[float] = attrs.field(factory=list)


@attrs.frozen
class RepeatedOrder:
    """An order that every buyer repeats."""

    model: str
    window: str
    rate_in: int
    rate_out: int


@attrs.define
class Honest:
    """A buyer that buys one job after the other, opens its result, and reads public routes."""

    client: Client
    pool: httpx.AsyncClient
    wish: RepeatedOrder
    times: Times
    bought: list[str]

    async def buy_until(self, enough: anyio.Event, *, min_jobs: int) -> None:
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._read)
            bought = 0
            while bought < min_jobs or not enough.is_set():
                await self._buy()
                bought += 1
            reading.cancel_scope.cancel()

    async def _buy(self) -> None:
        question = f"What is {secrets.token_hex(16)}?"
        began = time.monotonic()
        wish = self.wish
        prepared = await self.client.prepare(
            wish.model, question, window=wish.window, rate_in=wish.rate_in, rate_out=wish.rate_out
        )
        submitted = await self.client.submit(prepared, final=True)
        assert submitted.mined
        self.times.posts.append(time.monotonic() - began)
        self.bought.append(prepared.id)
        job = await self.client.wait(prepared.id, timeout=_JOB_TIMEOUT_S)
        assert job.status == "completed", f"{prepared.id} is {job.status}"
        self.times.jobs.append(time.monotonic() - began)
        assert question in str((await self.client.open(prepared.id)).output)

    async def _read(self) -> None:
        for path in cycle(_READ):
            began = time.monotonic()
            answer = await self.pool.get(path)
            self.times.reads.append(time.monotonic() - began)
            assert answer.status_code == 200, f"{path} was answered {answer.status_code}"
            await anyio.sleep(_PAUSE)


@attrs.define
class HonestProcess:
    """The test's side of the process."""

    _to: TextSendStream
    _lines: AsyncIterator[str]
    bought: set[bytes] = attrs.field(factory=set)

    async def go(self, min_jobs: int) -> None:
        await self._to.send(f"go {min_jobs}\n")

    async def stop(self, times: Times) -> None:
        """Stop the buyers. Add the times since `go` to `times`."""
        await self._to.send("stop\n")
        line = await anext(self._lines, None)
        assert line is not None, "an honest buyer was not served: standard error says how"
        told: dict[str, Any] = json.loads(line)
        self.bought |= {bytes.fromhex(job[2:]) for job in told.pop("bought")}
        for what, seconds in told.items():
            getattr(times, what).extend(seconds)


@asynccontextmanager
async def honest_process(
    base_url: str, gateways: tuple[str, ...], book: dict[str, Any], keys: list[str], wish: RepeatedOrder
) -> AsyncIterator[HonestProcess]:
    """Start buyers with these wallets. They wait for `go`."""
    told = {"base_url": base_url, "gateways": gateways, "book": book, "keys": keys, "wish": attrs.asdict(wish)}
    async with await anyio.open_process([sys.executable, "-m", "tests.support.attacks.honest"], stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to = TextSendStream(process.stdin)
        await to.send(json.dumps(told) + "\n")
        try:
            yield HonestProcess(to, _lines(TextReceiveStream(process.stdout)))
        finally:
            with suppress(ProcessLookupError):  # it exits when a buyer was not served
                process.terminate()


async def _lines(stream: TextReceiveStream) -> AsyncIterator[str]:
    held = ""
    async for text in stream:
        *whole, held = (held + text).split("\n")
        for line in whole:
            yield line


async def _main() -> None:
    commands = anyio.wrap_file(sys.stdin)
    told = json.loads(await commands.readline())
    book = AddressBook.parse(json.dumps(told["book"]).encode())
    wish = RepeatedOrder(**told["wish"])
    async with plain_http(told["base_url"], timeout=REQUEST_TIMEOUT_S) as pool, _clients(told, book, pool) as clients:
        while (command := await commands.readline()).startswith("go "):
            min_jobs = int(command.removeprefix("go "))
            times, bought, enough = Times(), list[str](), anyio.Event()
            async with anyio.create_task_group() as buying:
                for client in clients:
                    honest = Honest(client, pool, wish, times, bought)
                    buying.start_soon(partial(honest.buy_until, enough, min_jobs=min_jobs))
                await commands.readline()
                enough.set()
            sys.stdout.write(json.dumps({**attrs.asdict(times), "bought": bought}) + "\n")
            sys.stdout.flush()


@asynccontextmanager
async def _clients(told: dict[str, Any], book: AddressBook, pool: httpx.AsyncClient) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Client(
                    told["base_url"],
                    http=pool,
                    wallet_key=key,
                    gateways=told["gateways"],
                    addresses=book,
                    environment={},
                )
            )
            for key in told["keys"]
        ]


if __name__ == "__main__":
    anyio.run(_main)
