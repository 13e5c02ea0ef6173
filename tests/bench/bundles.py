"""Gas of a batch line in bundles, in a whole market with blocks of a second. A client buys a batch of single lines and
then of bundled ones, and opens every result.

    python -m tests.bench.bundles [--lines 50000]
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
import attrs

from devnet.anvil import BLOCK_GAS_LIMIT
from devnet.catalogue import MODELS
from devnet.world import Devnet
from svc.client import Client
from tests.bench.row import Row
from tests.bench.world import RATES, customer, ground, height
from tests.support.cpu_times import cpu_of

MAX_GAS: Final = 4_000.0
ROUNDS: Final = 3
LINES: Final = 2_000  # of each round
_SINGLE_LINES: Final = 100
_TIMEOUT_S: Final = 1_200.0


@attrs.frozen
class Bought:
    """One batch. `seconds` is from its preparation to the last opened result."""

    lines: int
    jobs: int
    gas: int
    seconds: float
    cpu: dict[str, float]  # seconds of each process

    @property
    def gas_per_line(self) -> float:
        return self.gas / self.lines

    def __str__(self) -> str:
        each = ", ".join(f"{name} {seconds / self.lines * 1000:.2f}" for name, seconds in self.cpu.items())
        return (
            f"{self.lines:,} lines in {self.jobs:,} jobs: {self.gas_per_line:,.0f} gas a line,"
            f" {BLOCK_GAS_LIMIT / self.gas_per_line:,.0f} lines per block of gas,"
            f" last result after {self.seconds:.1f} s; ms of CPU a line: {each}"
        )


async def buy(up: Devnet, client: Client, lines: int, bundle: int | None) -> Bought:
    """Buy a batch from the devnet's provider, and open every result. Raises RuntimeError for a missing one."""
    provider_id = up.world.market.provider_ids[up.world.wallets.demo_provider.address]
    texts = [
        json.dumps(
            {
                "custom_id": f"line {number}",
                "body": {"model": MODELS[0].name, "input": f"{number} " * 40, "max_output_tokens": 64, **RATES},
            }
        )
        for number in range(lines)
    ]
    first, before, started = await height(up) + 1, _cpu(up), time.monotonic()
    prepared = await client.batches.prepare(
        texts, window="1h", providers=[provider_id], bundle=bundle, max_amount=10**12
    )
    batch = await client.batches.create(prepared)
    ended = await client.batches.wait(batch.id, every=0.5)
    opened = 0
    async for result in client.batches.results(ended, custom_ids=prepared.custom_ids, fee_terms=prepared.fees):
        if result.result is None:
            raise RuntimeError(f"{result.id} ended without a result: {result.error}")
        opened += 1
    seconds, after = time.monotonic() - started, _cpu(up)
    if opened != lines:
        raise RuntimeError(f"{opened} of {lines} results were opened; the batch ended as {ended.status}")
    blocks: list[dict[str, Any]] = [
        await up.world.anvil.call("eth_getBlockByNumber", hex(number), False)
        for number in range(first, await height(up) + 1)
    ]
    gas = sum(int(block["gasUsed"], 16) for block in blocks)
    return Bought(lines, len(prepared.job_ids), gas, seconds, {name: after[name] - before[name] for name in after})


def _cpu(up: Devnet) -> dict[str, float]:
    """Return CPU seconds. All processes were started from this one, so the rest of its CPU is the client's."""
    pids = {
        "anvil": up.world.anvil.child.pid,
        **{child.program.name: child.pid for child in up.world.pins.children},
        "postgresql": up.world.postgres.child.pid,
        "coordinatord": up.coordinator.child.pid,
        "svcd": up.provider.child.pid,
    }
    *each, ours = cpu_of(*pids.values(), os.getpid())
    return dict(zip(pids, each, strict=True)) | {"client": ours - sum(each)}


async def gas_per_line(up: Devnet, client: Client) -> list[float]:
    with anyio.fail_after(_TIMEOUT_S):
        return [(await buy(up, client, LINES, None)).gas_per_line for _ in range(ROUNDS)]


def row(gas: Sequence[float]) -> Row:
    name = f"gas of a batch line in bundles, {LINES:,} lines"
    return Row.of(name, gas, "gas", f"{MAX_GAS:,.0f}", MAX_GAS, at_most=1)


async def _table(lines: int) -> None:
    """Buy a batch of single lines, and then bundled ones."""
    async with ground() as on, on.provided() as up, customer(up) as client:
        await up.world.anvil.mine_every(1)
        with anyio.fail_after(_TIMEOUT_S):
            print(await buy(up, client, _SINGLE_LINES, 1), await buy(up, client, lines, None), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bundles")
    parser.add_argument("--lines", type=int, default=10_000)
    anyio.run(_table, parser.parse_args().lines)


if __name__ == "__main__":
    main()
