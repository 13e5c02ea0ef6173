"""Where the index stands, to some milliseconds: what kept answers are held against.

Under load nobody waits for the database to say it: before the last answer is too old, the next is asked for.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from coordinatord.service.point_reads import PointReads
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot, read_snapshot

RECENT: Final = 0.010  # seconds that a kept answer may be older than its request: a fraction of any chain's block


class IndexPosition:
    def __init__(
        self,
        line: Line,
        read: Callable[[Line], Awaitable[Snapshot]] = read_snapshot,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads: PointReads[None, Snapshot] = PointReads(line, self._read_all)
        self._read = read
        self._clock = clock
        self._known: Snapshot | None = None
        self._asked_at = -RECENT

    async def get(self) -> Snapshot:
        """As it is now. Raises Retryable while there is no database, or no index in it."""
        return await self._reads.get(None)

    def recent(self) -> Snapshot | None:
        """As it was a moment ago, if that is known."""
        age = self._clock() - self._asked_at
        if age >= RECENT:
            return None
        if age > RECENT / 2:
            self._reads.renew(None)
        return self._known

    async def _read_all(self, line: Line, _: list[None]) -> dict[None, Snapshot]:
        asked_at = self._clock()
        snapshot = await self._read(line)
        self._known, self._asked_at = snapshot, asked_at
        return {None: snapshot}
