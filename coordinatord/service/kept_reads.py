"""Rows of the index by key, kept while the index stands still.

PostgreSQL is asked where the index stands in the statement that fetches what is not kept, and then not for some
milliseconds. What is kept may be older than the request that it answers by that much, and says of which block it is;
what is not kept is always read anew. So rows are fetched, decoded and rendered once in a block, and under load hardly
anybody waits for the database.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import attrs

from coordinatord.service.point_reads import Found, PointReads
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot

K = TypeVar("K")
V = TypeVar("V")

MOST_KEPT: Final = 4096
RECENT: Final = 0.010  # seconds that an answer may be older than its request: a fraction of any chain's block


class KeptReads(Generic[K, V]):
    """A reader as `PointReads` takes it, for rows that depend on nothing but the block that the index stands at."""

    def __init__(
        self,
        read: Callable[[Line, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
        most: int = MOST_KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` with no keys tells where the index stands."""
        self._read = read
        self._most = most
        self._clock = clock
        self._asked_at = -RECENT
        self._snapshot: Snapshot | None = None
        self._kept: dict[K, Found[V]] = {}

    def at_hand(self, key: K) -> Found[V] | None:
        """What needs no asking: a row that is kept, of where the index stood a moment ago."""
        return self._kept.get(key) if self._age() < RECENT else None

    def ages(self) -> bool:
        """Whether it is time to ask, so that there is something at hand also in a moment."""
        return self._age() > RECENT / 2

    def _age(self) -> float:
        return self._clock() - self._asked_at

    async def __call__(self, line: Line, keys: list[K]) -> dict[K, Found[V]]:
        """From one call at a time. All answers are of one snapshot."""
        asked_at = self._clock()
        unknown = [key for key in keys if key not in self._kept]
        snapshot, values = await self._read(line, unknown)
        if snapshot != self._snapshot and len(unknown) < len(keys):
            unknown = keys
            snapshot, values = await self._read(line, keys)
        if snapshot != self._snapshot or len(self._kept) + len(values) > self._most:
            kept = {} if snapshot != self._snapshot else {key: self._kept[key] for key in keys if key in self._kept}
            self._snapshot, self._kept = snapshot, kept
        self._asked_at = asked_at
        found = {key: Found(snapshot, values.get(key)) for key in unknown}
        # Keys that name nothing are as many as anybody likes to ask for: they are not kept.
        self._kept |= {key: one for key, one in found.items() if one.value is not None}
        return {key: found.get(key) or self._kept[key] for key in keys}


@attrs.frozen(slots=True)
class RecentReads(Generic[K, V]):
    """`get` from any task: what is at hand, else from the next read that all who wait share."""

    kept: KeptReads[K, V]
    gathered: PointReads[K, Found[V]]

    @classmethod
    def over(
        cls, line: Line, read: Callable[[Line, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]]
    ) -> "RecentReads[K, V]":
        kept = KeptReads(read)
        return cls(kept, PointReads(line, kept))

    async def get(self, key: K) -> Found[V]:
        found = self.kept.at_hand(key)
        if found is None:
            return await self.gathered.get(key)
        if self.kept.ages():
            self.gathered.renew(key)
        return found
