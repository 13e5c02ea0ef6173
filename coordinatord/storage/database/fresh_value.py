"""Cache one value of the database for a few milliseconds, because many callers read it."""

import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Generic, TypeVar

from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.prepared import PreparedConnection

T = TypeVar("T")

MAX_AGE_S: Final = 0.010  # far below the time of any chain's block


class FreshValue(Generic[T]):
    """Cached value. Concurrent callers share one read. The age of the value counts from the start of the read that
    returned the value."""

    def __init__(
        self,
        reader: PreparedConnection,
        read: Callable[[PreparedConnection], Awaitable[T]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads: BatchedReads[None, T] = BatchedReads(reader, self._read_all)
        self._read = read
        self._clock = clock
        self._value: T | None = None
        self._read_at = 0.0
        self._invalidated_at = -math.inf

    async def get(self) -> T:
        """Read the value now. Errors of the read are raised to every caller that shares the read."""
        return await self._reads.get(None)

    def recent_value(self, max_age_s: float = MAX_AGE_S) -> T | None:
        """Return the last value, or None if its read began `max_age_s` ago or earlier, or before `invalidate`."""
        age = self._clock() - self._read_at
        if age >= max_age_s or self._read_at <= self._invalidated_at:
            return None
        return self._value

    def begin_read(self) -> Callable[[T], None]:
        """Return a callback that stores a value which the caller reads itself. Call this before that read starts."""
        return partial(self._store_value, self._clock())

    def invalidate(self) -> None:
        """Drop the known value because it has changed."""
        self._invalidated_at = self._clock()

    async def get_recent(self, max_age_s: float = MAX_AGE_S) -> T:
        """Return the last value if it is recent. Otherwise read it."""
        known = self.recent_value(max_age_s)
        return known if known is not None else await self.get()

    async def _read_all(self, reader: PreparedConnection, _: list[None]) -> dict[None, T]:
        store = self.begin_read()
        value = await self._read(reader)
        store(value)
        return {None: value}

    def _store_value(self, read_at: float, value: T) -> None:
        """Store a value. Reads run in parallel, so a read that started earlier may end later. Ignore the value of such
        a read."""
        if read_at >= self._read_at:
            self._value, self._read_at = value, read_at
