"""Answers before blocks: time from an order to its opened result, with and without waiting for the chain."""

import argparse
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import attrs
import httpx

from devnet.catalogue import MODELS
from devnet.world import Devnet
from svc.client import Client
from tests.bench.market import bought
from tests.bench.row import Row
from tests.bench.shared import WORLD, Ground

_EARNED: Final = 6  # earlier settled jobs of the wallet, more than the provider requires
_SLOTS: Final = 256
_OUT: Final = 64
_RATES: Final = {"rate_in": 100_000, "rate_out": 200_000}  # the devnet's provider's asks
_ALLOWED: Final = 150.0  # ms beyond the run's time, which is 0
_TWO: Final = 2  # blocks
_BLOCK: Final = 2  # seconds
_AHEAD: Final = 24  # orders, one after another
_BY_CHAIN: Final = 8  # half of them are under way at a time

Order = Callable[[Client], Awaitable[object]]


@attrs.frozen
class Taken:
    """Milliseconds and blocks of each order until its result was opened."""

    times: list[float]
    blocks: list[int]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def slow(self) -> float:
        """Return the 95th percentile."""
        return sorted(self.times)[int(0.95 * (len(self.times) - 1))]

    def __str__(self) -> str:
        blocks = sorted(self.blocks)
        return (
            f"{self.median:6.0f} ms, p95 {self.slow:6.0f}; {statistics.median(blocks):g} blocks, at most {blocks[-1]}"
        )


def ahead(client: Client) -> Awaitable[object]:
    return client.run(MODELS[0].name, "said at once", window="1h", units_out=_OUT, provider=1)


def designated(client: Client) -> Awaitable[object]:
    return client.run(MODELS[0].name, "said at last", window="1h", units_out=_OUT, provider=1, final=True)


def open_bid(client: Client) -> Awaitable[object]:
    return client.run(MODELS[0].name, "said to all", window="1h", units_out=_OUT, **_RATES)


WAYS: Final[dict[str, Order]] = {
    "designated, run ahead": ahead,
    "designated, by the chain": designated,
    "open bid": open_bid,
}


@asynccontextmanager
async def market(on: Ground, block_time: int, *, runs_ahead: bool) -> AsyncIterator[tuple[Devnet, Client]]:
    async with on.provided(_SLOTS, ahead=runs_ahead, block_time=None) as up:
        url, gateway = up.coordinator.base_url, up.world.pins.gateway
        key = up.world.cast.with_role("client")[0].private_key
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
            Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
        ):
            for _ in range(_EARNED):
                await designated(client)
            await up.world.anvil.mine_every(block_time)
            yield up, client


async def timed(up: Devnet, client: Client, order: Order, jobs: int, at_once: int) -> Taken:
    taken = Taken([], [])
    left = iter(range(jobs))

    async def buyer(number: int) -> None:
        await anyio.sleep(number / at_once)  # at different moments between two blocks
        for _ in left:
            first, began = await head(up), time.perf_counter()
            await order(client)
            taken.times.append(1000 * (time.perf_counter() - began))
            taken.blocks.append(await head(up) - first)

    async with anyio.create_task_group() as buyers:
        for number in range(at_once):
            buyers.start_soon(buyer, number)
    return taken


async def head(up: Devnet) -> int:
    return int(await up.world.anvil.call("eth_blockNumber"), 16)


async def _quick(on: Ground) -> tuple[Taken, Taken]:
    async with market(on, _BLOCK, runs_ahead=True) as (up, client):
        at_once = await timed(up, client, ahead, _AHEAD, 1)
    async with market(on, _BLOCK, runs_ahead=False) as (up, client):
        by_chain = await timed(up, client, designated, _BY_CHAIN, _BY_CHAIN // 2)
    return at_once, by_chain


def rows() -> list[Row]:
    at_once, by_chain = WORLD.run(_quick)
    what = f"from an order to its opened result, blocks of {_BLOCK} s, {_SLOTS} slots"
    allowed, two = f"the run's own time and {_ALLOWED:g} ms", f"{_TWO} blocks ({by_chain.median:.0f} ms)"
    return [
        Row.of(f"{what}, run ahead", at_once.times, "ms", allowed, _ALLOWED, at_most=1, absolute="clock"),
        Row.of(f"{what}, by the chain", by_chain.blocks, "blocks", two, _TWO, at_most=1),
    ]


async def _table(block_times: Sequence[int], numbers: Sequence[int], jobs: int, on: Ground) -> None:
    for block_time in block_times:
        for name, order in WAYS.items():
            async with market(on, block_time, runs_ahead=order is ahead) as (up, client):
                for at_once in numbers:
                    taken = await timed(up, client, order, max(jobs, 2 * at_once), at_once)
                    print(f"blocks of {block_time} s, {at_once:2} at a time, {name:24} {taken}", flush=True)
        async with market(on, block_time, runs_ahead=False) as (up, client):
            for lines in numbers:
                taken = await timed(up, client, partial(bought, jobs=lines), 3, 1)
                said = f"blocks of {block_time} s, {lines:2} lines of a batch, {'to the last result':21}"
                print(said, taken, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.answers")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--jobs", type=int, default=24)
    chosen = parser.parse_args()
    WORLD.run(partial(_table, chosen.blocks, chosen.at_once, chosen.jobs))


if __name__ == "__main__":
    main()
