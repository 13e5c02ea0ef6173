"""Seconds between blocks, for estimates."""

import math
import time
from collections.abc import Callable
from typing import Final

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import Snapshot, read_block_pace

_KEPT_S: Final = 10.0


class BlockPace:
    """Mean time between the indexed blocks that a reorg may still remove."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: tuple[float, float | None] = (-math.inf, None)  # when it was read, and the pace

    async def first_after(self, snapshot: Snapshot, at: int) -> int | None:
        """Estimate the number of the first block later than `at`, which is at least the block after the index's. Return
        None while the pace is unknown."""
        read_at, pace = self._known
        if self._clock() - read_at > _KEPT_S:
            try:
                async with self._database.connection() as connection:
                    pace = await read_block_pace(connection)
            except Retryable:
                return None
            self._known = (self._clock(), pace)
        if pace is None:
            return None
        return snapshot.block_number + max(1, math.ceil((at + 1 - snapshot.block_time) / pace))
