"""Batch concurrent reads by key into shared queries.

Keys that callers request while one query runs are read together by the next query. A single caller never waits.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import attrs

from coordinatord.storage.database.snapshot_sql import Snapshot

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


@attrs.frozen(slots=True)
class IndexRead(Generic[V]):
    """Value of a key in the index, or None, with the snapshot that it was read at."""

    snapshot: Snapshot
    value: V | None


def with_snapshot(
    read: Callable[[S, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[S, list[K]], Awaitable[dict[K, IndexRead[V]]]]:
    """Return a reader for `BatchedReads` that gives every key a value from the same snapshot."""

    async def read_all(source: S, keys: list[K]) -> dict[K, IndexRead[V]]:
        snapshot, values = await read(source, keys)
        return {key: IndexRead(snapshot, values.get(key)) for key in keys}

    return read_all


class _Turn(enum.Enum):
    """Sentinel. The waiting caller that receives this value makes the next read."""

    YOURS = enum.auto()


class BatchedReads(Generic[K, V]):
    """Reads keys for all callers of an event loop. One of the waiting callers reads the keys of all, so that no read
    needs a task."""

    def __init__(
        self,
        source: S,
        read: Callable[[S, list[K]], Awaitable[dict[K, V]]],
        *,
        concurrency: int = 1,
        max_keys: int | None = None,
    ) -> None:
        """`read` returns a value for every key. It gets at most `max_keys` keys. Up to `concurrency` reads run at once.
        If `concurrency` is 1, `source` may be a prepared connection."""
        self._read = partial(read, source)
        self._concurrency = concurrency
        self._max_keys = max_keys
        self._waiting: dict[K, list[asyncio.Future[V | _Turn]]] = {}
        self._running = 0
        self._turn_given = False  # a caller was chosen for the next read and has not begun the read

    async def get(self, key: K) -> V:
        """Return the value of the key. If a read fails, every caller whose key is in that read gets the error."""
        future: asyncio.Future[V | _Turn] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._choose_reader()
        try:
            answer = await future
            if not isinstance(answer, _Turn):
                return answer
            await asyncio.sleep(0)  # callers of the same moment share the read
        except asyncio.CancelledError:
            if _has_turn(future):
                self._turn_given = False
                self._choose_reader()
            raise
        return await self._read_next(key)

    def _choose_reader(self) -> None:
        """Have the oldest waiting caller make the next read, unless `concurrency` reads are running."""
        if self._turn_given or self._running >= self._concurrency:
            return
        for future in _live_futures(self._waiting.values()):
            future.set_result(_Turn.YOURS)
            self._turn_given = True
            return
        self._waiting.clear()

    async def _read_next(self, key: K) -> V:
        """Read `key` and other keys that are waiting, and answer their callers."""
        batch = self._next_batch(key)
        self._turn_given = False
        self._running += 1
        self._choose_reader()
        try:
            values = await self._read(list(batch))
        except Exception as error:
            for future in _live_futures(batch.values()):
                future.set_exception(error)
            raise
        except BaseException:  # this caller is cancelled: the keys of other callers go to the front of the next read
            for other, futures in self._waiting.items():
                batch.setdefault(other, []).extend(futures)
            self._waiting = batch
            raise
        finally:
            self._running -= 1
            self._choose_reader()
        for each, futures in batch.items():
            for future in _live_futures([futures]):
                if each in values:
                    future.set_result(values[each])
                else:
                    future.set_exception(_omitted_key_error(each))
        if key not in values:
            raise _omitted_key_error(key)
        return values[key]

    def _next_batch(self, key: K) -> dict[K, list["asyncio.Future[V | _Turn]"]]:
        """Remove and return the keys of the next read: `key`, then the oldest keys, up to `max_keys`. Forget keys whose
        callers have all left."""
        batch = {key: self._waiting.pop(key, [])}
        self._waiting = {other: futures for other, futures in self._waiting.items() if any(_live_futures([futures]))}
        room = None if self._max_keys is None else self._max_keys - 1
        for other in [*islice(self._waiting, room)]:
            batch[other] = self._waiting.pop(other)
        return batch


def _live_futures(waiting: "Iterable[list[asyncio.Future[V | _Turn]]]") -> "Iterator[asyncio.Future[V | _Turn]]":
    """Yield the futures that a caller still waits for."""
    return (future for futures in waiting for future in futures if not future.done())


def _has_turn(future: "asyncio.Future[V | _Turn]") -> bool:
    answered = future.done() and not future.cancelled() and future.exception() is None
    return answered and isinstance(future.result(), _Turn)


def _omitted_key_error(key: object) -> LookupError:
    return LookupError(f"the read returned no value for the key {key!r}")
