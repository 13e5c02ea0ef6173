"""Mean time between blocks, to estimate the block of a future time."""

import math
import time
from collections.abc import Callable
from typing import Final

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import Snapshot, read_seconds_per_block

_CACHE_LIFETIME_S: Final = 10.0


class BlockPace:
    """Mean time between the indexed blocks that a reorg may still remove."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._cached: tuple[float, float | None] = (-math.inf, None)  # time of the last read, and the pace

    async def estimate_block_after(self, snapshot: Snapshot, timestamp: int) -> int | None:
        """Estimate the number of the first block with a time later than `timestamp`. This block is not indexed yet.
        Return None while the pace is unknown."""
        read_at, pace = self._cached
        if self._clock() - read_at > _CACHE_LIFETIME_S:
            try:
                async with self._database.connection() as connection:
                    pace = await read_seconds_per_block(connection)
            except Retryable:
                return None
            self._cached = (self._clock(), pace)
        if pace is None:
            return None
        return snapshot.block_number + max(1, math.ceil((timestamp + 1 - snapshot.block_time) / pace))
