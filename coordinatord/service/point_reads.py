"""Reads by key, gathered: all that wait while one query runs are answered together by the next.

Under load the cost of a query is shared by everybody waiting; alone, a read waits for nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Generic, TypeVar, cast

import attrs

from coordinatord.store.lines import Line
from coordinatord.store.snapshot import Snapshot

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


@attrs.frozen(slots=True)
class Found(Generic[V]):
    """What a key of the index names, if anything, and when it was so."""

    snapshot: Snapshot
    value: V | None


def with_snapshot(
    read: Callable[[Line, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[Line, list[K]], Awaitable[dict[K, Found[V]]]]:
    """A reader of index rows as `PointReads` takes it: every key gets an answer, all of one snapshot."""

    async def read_all(line: Line, keys: list[K]) -> dict[K, Found[V]]:
        snapshot, values = await read(line, keys)
        return {key: Found(snapshot, values.get(key)) for key in keys}

    return read_all


class PointReads(Generic[K, V]):
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
        except BaseException as trouble:
            for future in _live(batch):
                future.set_exception(trouble)
            if not isinstance(trouble, Exception):
                raise
            return
        for key, futures in batch.items():
            for future in futures:
                if not future.done():  # its request was cancelled
                    future.set_result(values[key])


def _live(batch: "dict[K, list[asyncio.Future[V]]]") -> "list[asyncio.Future[V]]":
    return [future for futures in batch.values() for future in futures if not future.done()]
