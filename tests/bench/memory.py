"""Resident memory of an idle coordinator, and of an index that reads a long chain."""

import re
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import asyncpg

from coordinatord.chain.rpc.client import open_rpc
from tests.bench.indexing import Chain, filled, index_all, timed
from tests.bench.row import Row
from tests.bench.shared import WORLD, Ground

LONG: Final = (600, 100)  # blocks, posts per block
PARTS: Final = 6  # of its blocks
IDLE_LIMIT: Final = 150  # MiB
IDLE_LOOKS: Final = 3


def resident(pid: int | str) -> float:
    """Return a process's resident memory in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise AssertionError(f"process {pid} is no more")
    return int(found[1]) / 1024


async def _peaks(chain: Chain) -> list[float]:
    """Return the peak for each part of the chain, one after another."""
    connection, watching = await asyncpg.connect(chain.database_url), await asyncpg.connect(chain.database_url)
    peaks = [0.0] * PARTS

    async def watch() -> None:
        while True:
            block = await watching.fetchval("select coalesce(max(block_number), 0) from index_position")
            part = max(0, block - 1) * PARTS // chain.blocks
            peaks[part] = max(peaks[part], resident("self"))
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks, open_rpc(chain.rpc_url) as rpc:
        tasks.start_soon(watch)
        await timed(chain, connection, partial(index_all, rpc))
        tasks.cancel_scope.cancel()
    await connection.close()
    await watching.close()
    return peaks


def _index_row() -> Row:
    with filled(*LONG, "dense") as chain:
        peaks = anyio.run(_peaks, chain, backend_options={"use_uvloop": True})
    first, later = max(peaks[: PARTS // 2]), peaks[PARTS // 2 :]
    what = f"peak of memory while the second half of {chain.posts:,} posts is indexed"
    return Row.of(what, later, "MiB", "its peak in the first half", first, at_most=1.1, by=max)


async def _idle(on: Ground) -> list[float]:
    async with on.provided() as up:
        looks = []
        for _ in range(IDLE_LOOKS):
            await anyio.sleep(1)
            looks.append(resident(up.coordinator.child.pid))
        return looks


def _idle_row() -> Row:
    used = WORLD.run(_idle)
    what = "memory of an idle coordinator, default settings, each second"
    return Row.of(what, used, "MiB", f"{IDLE_LIMIT} MiB", IDLE_LIMIT, at_most=1)


def rows() -> list[Row]:
    index = _index_row()
    return [_idle_row(), index]
