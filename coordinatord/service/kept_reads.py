"""Rows of the index by key, kept while the index stands still.

Every read still asks PostgreSQL where the index stands, in the statement that fetches what is not kept: an answer is
never older than its request. What is spared is fetching, decoding and rendering the same rows again within a block.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from coordinatord.service.point_reads import Found
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot

K = TypeVar("K")
V = TypeVar("V")

MOST_KEPT: Final = 4096


class KeptReads(Generic[K, V]):
    """A reader as `PointReads` takes it, for rows that depend on nothing but the block that the index stands at."""

    def __init__(
        self, read: Callable[[Line, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]], most: int = MOST_KEPT
    ) -> None:
        """`read` with no keys tells where the index stands."""
        self._read = read
        self._most = most
        self._snapshot: Snapshot | None = None
        self._kept: dict[K, Found[V]] = {}

    async def __call__(self, line: Line, keys: list[K]) -> dict[K, Found[V]]:
        """From one call at a time. All answers are of one snapshot."""
        unknown = [key for key in keys if key not in self._kept]
        snapshot, values = await self._read(line, unknown)
        if snapshot != self._snapshot and len(unknown) < len(keys):
            unknown = keys
            snapshot, values = await self._read(line, keys)
        if snapshot != self._snapshot or len(self._kept) + len(values) > self._most:
            kept = {} if snapshot != self._snapshot else {key: self._kept[key] for key in keys if key in self._kept}
            self._snapshot, self._kept = snapshot, kept
        found = {key: Found(snapshot, values.get(key)) for key in unknown}
        # Keys that name nothing are as many as anybody likes to ask for: they are not kept.
        self._kept |= {key: one for key, one in found.items() if one.value is not None}
        return {key: found.get(key) or self._kept[key] for key in keys}
