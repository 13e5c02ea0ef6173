"""Who polls for what, written down: providers are candidates while their last poll is recent.

A poll that says what the one before said, and comes soon after, is not written at once: the last of them is, with its
own time, long before the written one counts as old. So ten thousand pollers cost a few writes a second, and nobody is
taken for gone too early, or for there too long.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from coordinatord.service.point_reads import PointReads
from coordinatord.store import market
from coordinatord.store.database import Database
from coordinatord.store.leases import Poller
from coordinatord.store.lines import Line
from coordinatord.store.market import Seen
from coordinatord.trouble import Retryable

log = structlog.get_logger(__name__)

_WRITTEN_EACH: Final = 1 / 4  # of the time that a poll counts for
_MOST_REMEMBERED: Final = 100_000


class Attendance:
    """`note` from any task of the event loop, which must be asyncio's."""

    def __init__(self, database: Database, liveness_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._writes = PointReads[Seen, None](database.line(), self._write)
        self._counts_for = liveness_ms / 1000 * _WRITTEN_EACH
        self._clock = clock
        self._written: dict[Poller, tuple[int, float]] = {}
        self._unwritten: dict[Poller, tuple[int, float]] = {}  # the last polls since then: free slots, and when
        self._writer: asyncio.Task[None] | None = None

    async def note(self, poller: Poller, free: int) -> None:
        """Returns when the poll is written down, or is about to be while the one before counts."""
        now = self._clock()
        last_free, at = self._written.get(poller, (-1, 0.0))
        if last_free == free and now - at < self._counts_for:
            self._unwritten[poller] = (free, now)
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._write_later())
            return
        self._unwritten.pop(poller, None)
        await self._writes.get(Seen(poller.provider_id, poller.model_id, free, now))
        if len(self._written) >= _MOST_REMEMBERED:
            self._written.clear()
        self._written[poller] = (free, now)

    async def _write_later(self) -> None:
        """Lives as long as a poll is not written down."""
        while self._unwritten:
            await asyncio.sleep(self._counts_for)
            await self.write()

    async def write(self) -> None:
        """Write down what is not yet, each poll with its own time."""
        polls, self._unwritten = self._unwritten, {}
        seen = [Seen(poller.provider_id, poller.model_id, free, at) for poller, (free, at) in polls.items()]
        try:
            await asyncio.gather(*(self._writes.get(one) for one in seen))
        except Retryable as trouble:
            log.warning("polls not written down", reason=str(trouble))
            return
        self._written |= {poller: last for poller, last in polls.items() if poller in self._written}

    async def _write(self, line: Line, polls: list[Seen]) -> dict[Seen, None]:
        now = self._clock()
        await market.mark_seen(line, polls, [max(now - poll.at, 0.0) for poll in polls])
        return dict.fromkeys(polls)
