"""Liveness of providers: their polls, written down in time, because they are candidates while the last one is recent.

A poll that says the same as the one before, soon after it, is not written at once. The last of such polls is written
with its own time, long before the written one counts as old. So ten thousand pollers cost a few writes a second, and a
provider counts as live neither too long nor too short.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import anyio
import attrs
import structlog

from coordinatord.api.book import candidates_sql, leases_sql
from coordinatord.api.book.candidates_sql import Seen
from coordinatord.api.book.leases_sql import START, HeldJob, JobPlace, Peek, PollKey
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads, FreshValue, IndexRead, with_snapshot
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import Snapshot

log = structlog.get_logger(__name__)

_WRITTEN_EACH: Final = 1 / 4  # of the time that a poll counts for
_MOST_REMEMBERED: Final = 100_000


class Liveness:
    """Writer of polls. Call `note` and `staying` from any task of one event loop, and keep `run` running there."""

    def __init__(self, database: Database, liveness_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._writes = BatchedReads[Seen, None](database.prepared_connection(), self._write)
        self._counts_for = liveness_ms / 1000 * _WRITTEN_EACH
        self._clock = clock
        self._written: dict[PollKey, tuple[int, float]] = {}
        self._unwritten: dict[PollKey, tuple[int, float]] = {}  # the last polls since then: free slots, and when
        self._staying: dict[PollKey, list[int]] = {}  # polls that wait: their free slots

    async def note(self, poller: PollKey, free: int) -> None:
        """Record a poll. Return once it is stored, or sure to be stored before the previous poll expires."""
        now = self._clock()
        last_free, at = self._written.get(poller, (-1, 0.0))
        if last_free == free and now - at < self._counts_for:
            self._unwritten[poller] = (free, now)
            return
        self._unwritten.pop(poller, None)
        await self._writes.get(Seen(poller.provider_id, poller.model_id, free, now))
        if len(self._written) >= _MOST_REMEMBERED:
            self._written.clear()
        self._written[poller] = (free, now)

    @contextmanager
    def staying(self, poller: PollKey, free: int) -> Iterator[None]:
        """Count a poll that was noted as recent for as long as the block runs."""
        self._staying.setdefault(poller, []).append(free)
        try:
            yield
        finally:
            polls = self._staying[poller]
            polls.remove(free)
            if not polls:
                del self._staying[poller]

    async def run(self) -> NoReturn:
        """Write the polls that `note` left unwritten, and those that wait, until cancelled."""
        while True:
            await anyio.sleep(self._counts_for)
            now = self._clock()
            self._unwritten |= {poller: (max(free), now) for poller, free in self._staying.items()}
            await self.write()

    async def write(self) -> None:
        """Write every poll that is not yet written, with its own time."""
        polls, self._unwritten = self._unwritten, {}
        if not polls:
            return
        seen = [Seen(poller.provider_id, poller.model_id, free, at) for poller, (free, at) in polls.items()]
        try:
            async with self._database.connection() as connection:
                await self._write(connection, seen)
        except Retryable as error:
            log.warning("polls not written down", reason=str(error))
            return
        self._written |= {poller: last for poller, last in polls.items() if poller in self._written}

    async def _write(self, line: "PreparedConnection | Connection", polls: list[Seen]) -> dict[Seen, None]:
        now = self._clock()
        await candidates_sql.mark_seen(line, polls, [max(now - poll.at, 0.0) for poll in polls])
        return dict.fromkeys(polls)


_REMEMBERED: Final = 0.2  # seconds
_NOTICED: Final = 0.05  # seconds until polls that would find nothing learn of a block
_MOST_IDLE: Final = 100_000  # pollers
_MANY: Final = 32  # leases of a model in that time: fewer are passed over at no cost worth an order that is not exact


@attrs.frozen(slots=True)
class _Head:
    place: JobPlace
    until: float
    leased: int


class PollHints:
    """Hints that recent polls leave to the next ones: where in the order of bids to look, and where there is nothing.

    Both are remembered for a fraction of a second. A lease that lapses meanwhile is found that much later, or at once
    by a poll that would otherwise go short. A new job is never missed, because it comes with a block: where no job is
    open for a provider, leased or not, that is remembered until the index moves."""

    def __init__(
        self, database: Database, position: FreshValue[Snapshot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peeks = BatchedReads[PollKey, IndexRead[Peek]](database.prepared_connection(), with_snapshot(self._read))
        self._position = position
        self._clock = clock
        self._heads: dict[int, _Head] = {}  # by model
        self._bare: dict[int, tuple[bytes, float]] = {}  # by model: without a bid at this block, until when
        self._idle: dict[PollKey, Peek] = {}  # for whom nothing was open
        self._idle_at = b""  # at this block

    async def peek(self, poller: PollKey) -> IndexRead[Peek]:
        """Look for anything the poll could be given, in one read shared with all polls of the moment."""
        idle, idle_at = self._idle.get(poller), self._idle_at
        if idle is not None:
            position = await self._position.lately(_NOTICED)
            if position.block_hash == idle_at:
                return IndexRead(position, idle)
        return await self._peeks.get(poller)

    def head(self, model_id: int) -> JobPlace:
        """Position before which every bid of the model was leased recently; polls may start here."""
        head = self._heads.get(model_id)
        return START if head is None or head.leased < _MANY or head.until < self._clock() else head.place

    def leased(self, model_id: int, held: list[HeldJob]) -> None:
        """Remember the leases that polls without filters were given, looking from the head."""
        places = [job.place for job in held if job.is_new and not job.row.designated]
        if not places:
            return
        newest = max(places, key=lambda place: (place.block, place.log))
        head, now = self._heads.get(model_id), self._clock()
        if head is None or head.until < now:
            self._heads[model_id] = _Head(newest, now + _REMEMBERED, len(places))
        else:  # the time counts from the last look at all: what lapsed since then is behind the head
            self._heads[model_id] = _Head(newest, head.until, head.leased + len(places))

    async def _read(self, line: PreparedConnection, pollers: list[PollKey]) -> tuple[Snapshot, dict[PollKey, Peek]]:
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
