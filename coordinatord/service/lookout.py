"""What the polls of a moment tell those after them: where in the order of bids to look, and where there is nothing.

Both are remembered for a fraction of a second. A lease that lapses meanwhile is found that much later, or at once by a
poll that would otherwise go short; a new job is never missed, because it comes with a block. So where no job is open
for a provider at all, whoever holds it, that is remembered until the index moves: no lease is of any matter there.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

from coordinatord.service.point_reads import Found, PointReads, with_snapshot
from coordinatord.service.recent import Recent
from coordinatord.store import leases
from coordinatord.store.database import Database
from coordinatord.store.leases import START, HeldJob, Peek, Place, Poller
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot

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
        self, database: Database, position: Recent[Snapshot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peeks = PointReads[Poller, Found[Peek]](database.line(), with_snapshot(self._read))
        self._position = position
        self._clock = clock
        self._heads: dict[int, _Head] = {}  # by model
        self._bare: dict[int, tuple[bytes, float]] = {}  # by model: without a bid at this block, until when
        self._idle: dict[Poller, Peek] = {}  # for whom nothing was open
        self._idle_at = b""  # at this block

    async def peek(self, poller: Poller) -> Found[Peek]:
        """What the poll would meet; shared with all that ask at the same time."""
        idle, idle_at = self._idle.get(poller), self._idle_at
        if idle is not None:
            position = await self._position.lately(_NOTICED)
            if position.block_hash == idle_at:
                return Found(position, idle)
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

    async def _read(self, line: Line, pollers: list[Poller]) -> tuple[Snapshot, dict[Poller, Peek]]:
        now = self._clock()
        self._bare = {model_id: known for model_id, known in self._bare.items() if now < known[1]}
        snapshot, peeks = await leases.peek(line, pollers, {model: block for model, (block, _) in self._bare.items()})
        if snapshot.block_hash != self._idle_at or len(self._idle) + len(peeks) > _MOST_IDLE:
            self._idle, self._idle_at = {}, snapshot.block_hash
        for poller, peek in peeks.items():
            if peek.known_model and not peek.any_open:
                self._idle[poller] = peek
            if not peek.any_bid and poller.model_id not in self._bare:
                self._bare[poller.model_id] = (snapshot.block_hash, now + _REMEMBERED)
        return snapshot, peeks
