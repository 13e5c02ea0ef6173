"""Who polls for what, written down: providers are candidates while their last poll is recent.

A poll that says what the one before said, and comes soon after, is not written again; the others are gathered, so that
ten thousand pollers cost a few writes a second.
"""

import time
from collections.abc import Callable
from typing import Final

from coordinatord.service.point_reads import PointReads
from coordinatord.store import market
from coordinatord.store.database import Database
from coordinatord.store.leases import Poller
from coordinatord.store.lines import Line
from coordinatord.store.market import Seen

_WRITTEN_EACH: Final = 1 / 4  # of the time that a poll counts for
_MOST_REMEMBERED: Final = 100_000


class Attendance:
    def __init__(self, database: Database, liveness_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._writes = PointReads[Seen, None](database.line(), _write)
        self._counts_for = liveness_ms / 1000 * _WRITTEN_EACH
        self._clock = clock
        self._written: dict[Poller, tuple[int, float]] = {}

    async def note(self, poller: Poller, free: int) -> None:
        """Returns when the poll is written down, or was so lately."""
        now = self._clock()
        last_free, at = self._written.get(poller, (-1, 0.0))
        if last_free == free and now - at < self._counts_for:
            return
        await self._writes.get(Seen(poller.provider_id, poller.model_id, free))
        if len(self._written) >= _MOST_REMEMBERED:
            self._written.clear()
        self._written[poller] = (free, now)


async def _write(line: Line, polls: list[Seen]) -> dict[Seen, None]:
    await market.mark_seen(line, polls)
    return dict.fromkeys(polls)
