"""Reads by key, gathered: all that wait while one query runs are answered together by the next.

Under load the cost of a query is shared by everybody waiting; alone, a read waits for nobody.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar, cast

import asyncpg
import attrs

from coordinatord.base.errors import Retryable
from coordinatord.database.connections import PreparedConnection

# Where the index stood when rows were read: taken in the rows' own statement, so that both are of one moment.


@attrs.frozen(slots=True)
class Snapshot:
    block_number: int
    block_hash: bytes
    block_time: int


COLUMNS = "p.block_number as as_of_number, p.block_hash as as_of_hash, p.block_time as as_of_time, p.rebuilding"


async def read_snapshot(line: PreparedConnection) -> Snapshot:
    """Snapshot of the index as it is now."""
    return snapshot_of(await line.fetch(f"select {COLUMNS} from index_position p"))


def snapshot_of(rows: "list[asyncpg.Record]") -> Snapshot:
    """Of rows selected `from index_position p left join ...`: at least one once the index has begun."""
    if not rows:
        raise Retryable("not_ready", "the index has not begun")
    row = rows[0]
    if row["rebuilding"]:  # the tables are being replayed: what they hold is of no block
        raise Retryable("not_ready", "the index is being rebuilt")
    return Snapshot(row["as_of_number"], row["as_of_hash"], row["as_of_time"])


K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


@attrs.frozen(slots=True)
class IndexRead(Generic[V]):
    """Value that a key of the index names, if any, with the snapshot that it was read in."""

    snapshot: Snapshot
    value: V | None


def with_snapshot(
    read: Callable[[PreparedConnection, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[PreparedConnection, list[K]], Awaitable[dict[K, IndexRead[V]]]]:
    """A reader of index rows as `BatchedReads` takes it: every key gets an answer, all of one snapshot."""

    async def read_all(line: PreparedConnection, keys: list[K]) -> dict[K, IndexRead[V]]:
        snapshot, values = await read(line, keys)
        return {key: IndexRead(snapshot, values.get(key)) for key in keys}

    return read_all


class BatchedReads(Generic[K, V]):
    """`get` from any task. The loop under it must be asyncio: a future per waiter is the cheapest that there is."""

    def __init__(
        self,
        source: S,
        read: Callable[[S, list[K]], Awaitable[dict[K, V]]],
        *,
        at_once: int = 1,
        most: int | None = None,
    ) -> None:
        """`read` answers for every key that it is given, `most` in number. One read runs at a time, unless more are
        allowed `at_once`: so `source` may be a line."""
        self._read = partial(read, source)
        self._at_once = at_once
        self._most = most
        self._waiting: dict[K, list[asyncio.Future[V]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def get(self, key: K) -> V:
        """Raises what the read raises, to everybody whose key was in it."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._start()
        return await future

    def renew(self, key: K) -> None:
        """Have the key read, for whatever the read itself keeps. Nobody waits for it, or hears that it failed."""
        self._waiting.setdefault(key, [])
        self._start()

    def _start(self) -> None:
        if len(self._running) < self._at_once:
            self._running.add(asyncio.create_task(self._run()))

    async def _run(self) -> None:
        """Lives as long as somebody waits."""
        try:
            while self._waiting:
                await self._answer(self._next())
        finally:
            self._running.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _next(self) -> dict[K, list["asyncio.Future[V]"]]:
        """Whoever came first."""
        waiting, self._waiting = self._waiting, {}
        if self._most is None or len(waiting) <= self._most:
            return waiting
        batch = {key: waiting.pop(key) for key in [*islice(waiting, self._most)]}
        self._waiting = waiting
        return batch

    async def _answer(self, batch: dict[K, list["asyncio.Future[V]"]]) -> None:
        try:
            values = await self._read(list(batch))
        except BaseException as error:
            for future in _live(batch):
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for key, futures in batch.items():
            for future in futures:
                if not future.done():  # its request was cancelled
                    future.set_result(values[key])


def _live(batch: "dict[K, list[asyncio.Future[V]]]") -> "list[asyncio.Future[V]]":
    return [future for futures in batch.values() for future in futures if not future.done()]


T = TypeVar("T")

RECENT: Final = 0.010  # seconds that a kept answer may be older than its request: a fraction of any chain's block
_RENEWED: Final = 0.7  # of that time: the rest is for the answer to come


class FreshValue(Generic[T]):
    def __init__(
        self,
        line: PreparedConnection,
        read: Callable[[PreparedConnection], Awaitable[T]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reads: BatchedReads[None, T] = BatchedReads(line, self._read_all)
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

    def asking(self) -> Callable[[T], None]:
        """Callback for the value that another read brings along. Get it before that read is sent: its age counts from
        here."""
        return partial(self._learn, self._clock())

    def forget(self) -> None:
        """Drop the value that is known, whatever its age: somebody knows of something newer."""
        self._forgotten_at = self._clock()

    async def lately(self, within: float = RECENT) -> T:
        """As it was a moment ago, or is now."""
        known = self.recent(within)
        return known if known is not None else await self.get()

    async def _read_all(self, line: PreparedConnection, _: list[None]) -> dict[None, T]:
        learn = self.asking()
        value = await self._read(line)
        learn(value)
        return {None: value}

    def _learn(self, asked_at: float, value: T) -> None:
        """Reads go side by side: one that was asked for earlier may be answered later, and of an older moment."""
        if asked_at >= self._asked_at:
            self._known, self._asked_at = value, asked_at
