"""What every request asks of the database alike, known to some milliseconds: what kept answers are held against.

Under load nobody waits for the database to say it: before the last answer is too old, the next is asked for.
"""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from coordinatord.service.point_reads import PointReads
from coordinatord.store.lines import Line

T = TypeVar("T")

RECENT: Final = 0.010  # seconds that a kept answer may be older than its request: a fraction of any chain's block
_RENEWED: Final = 0.7  # of that time: the rest is for the answer to come


class Recent(Generic[T]):
    def __init__(
        self,
        line: Line,
        read: Callable[[Line], Awaitable[T]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads: PointReads[None, T] = PointReads(line, self._read_all)
        self._read = read
        self._clock = clock
        self._known: T | None = None
        self._asked_at = 0.0  # what is not known is not recent, whenever it was asked for
        self._forgotten_at = -math.inf

    async def get(self) -> T:
        """As it is now. Raises what the read raises."""
        return await self._reads.get(None)

    def recent(self, within: float = RECENT) -> T | None:
        """As it was a moment ago, if that is known."""
        age = self._clock() - self._asked_at
        if age >= within or self._asked_at <= self._forgotten_at:
            return None
        if age > within * _RENEWED:
            self._reads.renew(None)
        return self._known

    def forget(self) -> None:
        """What was asked for until now is too old, whatever its age: somebody knows of something newer."""
        self._forgotten_at = self._clock()

    async def lately(self, within: float = RECENT) -> T:
        """As it was a moment ago, or is now."""
        known = self.recent(within)
        return known if known is not None else await self.get()

    async def _read_all(self, line: Line, _: list[None]) -> dict[None, T]:
        asked_at = self._clock()
        value = await self._read(line)
        self._known, self._asked_at = value, asked_at
        return {None: value}
