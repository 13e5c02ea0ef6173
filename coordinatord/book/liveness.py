"""Who polls for what, written down: providers are candidates while their last poll is recent.

A poll that says what the one before said, and comes soon after, is not written at once: the last of them is, with its
own time, long before the written one counts as old. So ten thousand pollers cost a few writes a second, and nobody is
taken for gone too early, or for there too long.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.book import candidates_sql, leases_sql
from coordinatord.book.candidates_sql import Seen
from coordinatord.book.leases_sql import START, HeldJob, Peek, Place, Poller
from coordinatord.database.batched_reads import BatchedReads, FreshValue, IndexRead, Snapshot, with_snapshot
from coordinatord.database.connections import Database, PreparedConnection

log = structlog.get_logger(__name__)

_WRITTEN_EACH: Final = 1 / 4  # of the time that a poll counts for
_MOST_REMEMBERED: Final = 100_000


class Attendance:
    """`note` from any task of the event loop, which must be asyncio's."""

    def __init__(self, database: Database, liveness_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._writes = BatchedReads[Seen, None](database.prepared_connection(), self._write)
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

    async def _write(self, line: PreparedConnection, polls: list[Seen]) -> dict[Seen, None]:
        now = self._clock()
        await candidates_sql.mark_seen(line, polls, [max(now - poll.at, 0.0) for poll in polls])
        return dict.fromkeys(polls)


# What the polls of a moment tell those after them: where in the order of bids to look, and where there is nothing.
#
# Both are remembered for a fraction of a second. A lease that lapses meanwhile is found that much later, or at once
# by a
# poll that would otherwise go short; a new job is never missed, because it comes with a block. So where no job is
# open
# for a provider at all, whoever holds it, that is remembered until the index moves: no lease is of any matter there.

_REMEMBERED: Final = 0.2  # seconds
_NOTICED: Final = 0.05  # seconds until polls that would find nothing learn of a block
_MOST_IDLE: Final = 100_000  # pollers
_MANY: Final = 32  # leases of a model in that time: fewer are passed over at no cost worth an order that is not exact


@attrs.frozen(slots=True)
class _Head:
    place: Place
    until: float
    leased: int


class Lookout:
    def __init__(
        self, database: Database, position: FreshValue[Snapshot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peeks = BatchedReads[Poller, IndexRead[Peek]](database.prepared_connection(), with_snapshot(self._read))
        self._position = position
        self._clock = clock
        self._heads: dict[int, _Head] = {}  # by model
        self._bare: dict[int, tuple[bytes, float]] = {}  # by model: without a bid at this block, until when
        self._idle: dict[Poller, Peek] = {}  # for whom nothing was open
        self._idle_at = b""  # at this block

    async def peek(self, poller: Poller) -> IndexRead[Peek]:
        """What the poll would meet; shared with all that ask at the same time."""
        idle, idle_at = self._idle.get(poller), self._idle_at
        if idle is not None:
            position = await self._position.lately(_NOTICED)
            if position.block_hash == idle_at:
                return IndexRead(position, idle)
        return await self._peeks.get(poller)

    def head(self, model_id: int) -> Place:
        """Before it, no bid of the model was to be had a moment ago."""
        head = self._heads.get(model_id)
        return START if head is None or head.leased < _MANY or head.until < self._clock() else head.place

    def leased(self, model_id: int, held: list[HeldJob]) -> None:
        """What polls without filters found, looking from the head."""
        places = [job.place for job in held if job.is_new and not job.row.designated]
        if not places:
            return
        newest = max(places, key=lambda place: (place.block, place.log))
        head, now = self._heads.get(model_id), self._clock()
        if head is None or head.until < now:
            self._heads[model_id] = _Head(newest, now + _REMEMBERED, len(places))
        else:  # the time counts from the last look at all: what lapsed since then is behind the head
            self._heads[model_id] = _Head(newest, head.until, head.leased + len(places))

    async def _read(self, line: PreparedConnection, pollers: list[Poller]) -> tuple[Snapshot, dict[Poller, Peek]]:
        now = self._clock()
        self._bare = {model_id: known for model_id, known in self._bare.items() if now < known[1]}
        snapshot, peeks = await leases_sql.peek(
            line, pollers, {model: block for model, (block, _) in self._bare.items()}
        )
        if snapshot.block_hash != self._idle_at or len(self._idle) + len(peeks) > _MOST_IDLE:
            self._idle, self._idle_at = {}, snapshot.block_hash
        for poller, peek in peeks.items():
            if peek.known_model and not peek.any_open:
                self._idle[poller] = peek
            if not peek.any_bid and poller.model_id not in self._bare:
                self._bare[poller.model_id] = (snapshot.block_hash, now + _REMEMBERED)
        return snapshot, peeks
