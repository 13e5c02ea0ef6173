"""Bounded channel between two stages that delivers the item with the earliest deadline first."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class DeadlineChannel(Generic[T]):
    """Priority queue with backpressure. To end a worker, cancel its `receive`."""

    def __init__(self, capacity: int) -> None:
        self._free_places = trio.Semaphore(capacity)
        self._queued = trio.Semaphore(0)
        self._heap: list[tuple[float, int, T]] = []
        self._order: Iterator[int] = itertools.count()  # items with equal deadlines keep their order

    async def send(self, deadline: float, item: T) -> None:
        await self._free_places.acquire()
        heapq.heappush(self._heap, (deadline, next(self._order), item))
        self._queued.release()

    async def receive(self) -> T:
        await self._queued.acquire()
        _, _, item = heapq.heappop(self._heap)
        self._free_places.release()
        return item

    def drain(self) -> list[T]:
        """Remove and return all queued items, in order."""
        waiting: list[T] = []
        while self._heap:
            self._queued.acquire_nowait()
            waiting.append(heapq.heappop(self._heap)[2])
            self._free_places.release()
        return waiting
