"""The complete market: time from order to result, jobs per second, and gas of a batch line.

A devnet like that of `make devnet`, with real daemons and default settings except the provider's slots. All processes
share the machine.
"""

import json
import time
from collections.abc import Awaitable
from itertools import pairwise
from typing import Final

import anyio

from common.artifacts import event_topic, load_artifact
from devnet.catalogue import MODELS
from devnet.world import Devnet
from svc.client import Client
from tests.bench import bundles
from tests.bench.row import Row
from tests.bench.world import RATES, customer, ground

JOBS_PER_S: Final = 80.0
AHEAD_MS: Final = 150.0  # beyond the run's time, which is 0
BLOCK_S: Final = 1
SLOTS: Final = 512
BATCH_LINES: Final = 300  # of each buyer
BUYERS: Final = 4
WARM_UP_JOBS: Final = 200  # settled before the busy time is measured
BUSY_S: Final = 21.0
ORDERS: Final = 8
_INTERVALS: Final = 3  # of the busy time, each longer than a batch takes from its posts to its settles
_SETTLED_JOBS: Final = 6  # of the wallet, more than running ahead requires
_OUTPUT_UNITS: Final = 64
_TIMEOUT_S: Final = 600.0


# --- single orders ---------------------------------------------------------------------------------------------


async def single_orders(up: Devnet, client: Client) -> list[float]:
    """Buy one job after another, with a block each second. Return the milliseconds until each result was opened."""

    def order(*, final: bool) -> Awaitable[object]:
        return client.run(MODELS[0].name, "one", window="1h", units_out=_OUTPUT_UNITS, provider=1, final=final)

    for _ in range(_SETTLED_JOBS):
        await order(final=True)
    await up.world.anvil.mine_every(BLOCK_S)
    times: list[float] = []
    while len(times) < ORDERS:
        # Begin at different times between two blocks.
        await anyio.sleep(BLOCK_S * (0.37 * len(times) % 1))
        began = time.perf_counter()
        await order(final=False)
        times.append(1000 * (time.perf_counter() - began))
    return times


# --- a busy market ---------------------------------------------------------------------------------------------


async def buy_batch(client: Client, lines: int) -> None:
    """Buy a batch of open lines, and open each result. Raise RuntimeError if one is missing."""
    texts = [
        json.dumps(
            {"body": {"model": MODELS[0].name, "input": f"job {n}", "max_output_tokens": _OUTPUT_UNITS, **RATES}}
        )
        for n in range(lines)
    ]
    batch = await client.batches.create(await client.batches.prepare(texts, window="1h"))
    ended = await client.batches.wait(batch.id, every=0.5)
    results = [result async for result in client.batches.results(ended)]
    if missing := [result for result in results if result.result is None]:
        raise RuntimeError(f"{missing[0].id} ended without a result: {missing[0].error}")
    if len(results) != lines:
        raise RuntimeError(f"{len(results)} of {lines} results were opened; the batch ended as {ended.status}")


async def measure_throughput(up: Devnet, client: Client) -> list[float]:
    """Return jobs settled per second in equal parts of the busy time, while buyers order one batch after another."""

    async def buyer() -> None:
        while True:
            await buy_batch(client, BATCH_LINES)

    marks: list[tuple[float, int]] = []
    with anyio.fail_after(_TIMEOUT_S):
        async with anyio.create_task_group() as buyers:
            for _ in range(BUYERS):
                buyers.start_soon(buyer)
            busy_from = await count_settled_jobs(up) + WARM_UP_JOBS
            while await count_settled_jobs(up) < busy_from:  # noqa: ASYNC110 - the event is in the node
                await anyio.sleep(0.2)
            for _ in range(_INTERVALS + 1):
                marks.append((time.monotonic(), await count_settled_jobs(up)))
                await anyio.sleep(BUSY_S / _INTERVALS)
            buyers.cancel_scope.cancel()
    return [(after - before) / (late - early) for (early, before), (late, after) in pairwise(marks)]


async def count_settled_jobs(up: Devnet) -> int:
    topic = "0x" + event_topic(load_artifact("JobRegistry"), "JobSettled").hex()
    query = {"fromBlock": "0x0", "toBlock": "latest", "address": up.world.market.jobs, "topics": [topic]}
    return len(await up.world.anvil.call("eth_getLogs", query))


# --- the figures -----------------------------------------------------------------------------------------------


async def _measure() -> tuple[list[float], list[float], list[float]]:
    async with ground() as on:
        async with on.provided(SLOTS, ahead=True) as up, customer(up) as client:
            ahead = await single_orders(up, client)
        # The bundles come first: they earn the gas budget and the capacity that the busy market needs.
        async with on.provided(SLOTS) as up, customer(up) as client:
            await up.world.anvil.mine_every(BLOCK_S)
            return ahead, await bundles.gas_per_line(up, client), await measure_throughput(up, client)


def rows() -> list[Row]:
    ahead, lines, paces = anyio.run(_measure, backend_options={"use_uvloop": True})
    return [
        Row.of("order to opened result, run ahead", ahead, "ms", f"run time + {AHEAD_MS:g} ms", AHEAD_MS, at_most=1),
        bundles.row(lines),
        Row.of("whole market", paces, "jobs/s", f"{JOBS_PER_S:g} jobs/s", JOBS_PER_S, target=1),
    ]
