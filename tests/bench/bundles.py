"""Compare bundled batch lines with single lines on the same chain: gas, blocks, time and CPU per line.

Uses a devnet with default settings, an echo backend, and one block per second. A client buys batches of single lines
and then of bundled ones, and opens every result.

    python -m tests.bench.bundles [--lines 50000]
"""

import argparse
import json
import time
from functools import partial
from typing import Any, Final

import anyio
import attrs

from devnet.anvil import BLOCK_GAS_LIMIT
from devnet.catalogue import MODELS
from devnet.settings import SLOTS
from devnet.world import Devnet
from svc.client import Client
from tests.bench.market import Watched, customer, processes
from tests.bench.row import Row
from tests.bench.shared import WORLD, Ground

ROUNDS: Final = 3
SINGLE_LINES: Final = 100  # of each round
BUNDLED_LINES: Final = 3_500
MAX_GAS: Final = 4_000.0
MIN_TIMES_PER_BLOCK: Final = 20.0
_RATES: Final = {"rate_in": 100_000, "rate_out": 200_000}  # the devnet's provider's asks
_TIMEOUT_S: Final = 1_200.0


@attrs.frozen
class Bought:
    """One batch. `seconds` is from its preparation to the last opened result."""

    lines: int
    jobs: int
    gas: int
    blocks: int  # with transactions
    seconds: float
    cpu: dict[str, float]  # seconds of each process

    @property
    def gas_per_line(self) -> float:
        return self.gas / self.lines

    @property
    def lines_per_block(self) -> float:
        return BLOCK_GAS_LIMIT / self.gas_per_line

    @property
    def cpu_per_line(self) -> float:
        """Return milliseconds of all processes."""
        return sum(self.cpu.values()) / self.lines * 1000

    def __str__(self) -> str:
        each = ", ".join(f"{name} {seconds / self.lines * 1000:.2f}" for name, seconds in self.cpu.items())
        return (
            f"{self.lines:,} lines in {self.jobs:,} jobs: {self.gas_per_line:,.0f} gas a line,"
            f" {self.lines_per_block:,.0f} lines per block of gas, {self.blocks} blocks,"
            f" last result after {self.seconds:.1f} s; ms of CPU a line: {each}"
        )


async def buy(up: Devnet, client: Client, lines: int, bundle: int | None) -> Bought:
    """Buy a batch from the devnet's provider, and open every result. Raises RuntimeError for a missing one."""
    provider_id = up.world.market.provider_ids[up.world.cast.demo_provider.address]
    texts = [
        json.dumps(
            {
                "custom_id": f"line {number}",
                "body": {"model": MODELS[0].name, "input": f"{number} " * 40, "max_output_tokens": 64, **_RATES},
            }
        )
        for number in range(lines)
    ]
    watched = Watched(up.provider.metrics_url, SLOTS, processes(up))
    first = int(await up.world.anvil.call("eth_blockNumber"), 16) + 1
    watched.look()
    started = time.monotonic()
    prepared = await client.batches.prepare(
        texts, window="1h", providers=[provider_id], bundle=bundle, max_amount=10**12
    )
    batch = await client.batches.create(prepared)
    ended = await client.batches.wait(batch.id, every=0.5)
    opened = 0
    async for result in client.batches.results(ended, custom_ids=prepared.custom_ids, charges=prepared.fees):
        if result.result is None:
            raise RuntimeError(f"{result.id} ended without a result: {result.error}")
        opened += 1
    seconds = time.monotonic() - started
    watched.look()
    if opened != lines:
        raise RuntimeError(f"{opened} of {lines} results were opened; the batch ended as {ended.status}")
    last = int(await up.world.anvil.call("eth_blockNumber"), 16)
    blocks: list[dict[str, Any]] = [
        await up.world.anvil.call("eth_getBlockByNumber", hex(number), False) for number in range(first, last + 1)
    ]
    used = [int(block["gasUsed"], 16) for block in blocks]
    return Bought(lines, len(prepared.job_ids), sum(used), sum(map(bool, used)), seconds, watched.spent())


async def _measure(lines: int, rounds: int, on: Ground) -> tuple[list[Bought], list[Bought]]:
    with anyio.fail_after(_TIMEOUT_S):
        async with on.provided() as up, customer(up, on.coordinator.base_url) as client:
            single = [await buy(up, client, SINGLE_LINES, 1) for _ in range(rounds)]
            return single, [await buy(up, client, lines, None) for _ in range(rounds)]


def rows(lines: int = BUNDLED_LINES) -> list[Row]:
    single, bundled = WORLD.run(partial(_measure, lines, ROUNDS))
    what = f"{lines:,} batch lines in bundles"
    beside = f"{SINGLE_LINES} single lines"
    return [
        Row.of(
            f"gas per line of {what}",
            [each.gas_per_line for each in bundled],
            "gas",
            f"{MAX_GAS:,.0f}",
            MAX_GAS,
            at_most=1,
        ),
        Row.of(
            f"lines per block of gas, {what}",
            [each.lines_per_block for each in bundled],
            "lines",
            beside,
            [each.lines_per_block for each in single],
            target=MIN_TIMES_PER_BLOCK,
        ),
        Row.of(
            f"CPU of the whole market per line of {what}",
            [each.cpu_per_line for each in bundled],
            "ms",
            beside,
            [each.cpu_per_line for each in single],
            at_most=0.5,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bundles")
    parser.add_argument("--lines", type=int, default=10_000)
    lines = parser.parse_args().lines
    for each in WORLD.run(partial(_measure, lines, 1)):
        print(*each, sep="\n")


if __name__ == "__main__":
    main()
