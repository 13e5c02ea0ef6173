"""Queue for a model's backend, in order of deadline. A turn is the permission to run one job, item or request."""

import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.frozen(slots=True, order=True)
class _Ticket:
    deadline: float
    arrival_number: int
    called_event: trio.Event = attrs.field(factory=trio.Event, order=False)


@attrs.define(slots=True, eq=False)
class Turns:
    """Turns of one model, at most one per slot at a time. The waiter with the earliest deadline gets the next turn."""

    slots: int
    _free: int = attrs.field(init=False)
    _waiting: list[_Ticket] = attrs.field(factory=list)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        self._free = self.slots

    @asynccontextmanager
    async def turn(self, deadline: float) -> AsyncIterator[None]:
        await self._wait(deadline)
        try:
            yield
        finally:
            self._wake_next()

    async def _wait(self, deadline: float) -> None:
        if self._free > 0:
            self._free -= 1
            return
        ticket = _Ticket(deadline, next(self._numbers))
        heapq.heappush(self._waiting, ticket)
        try:
            await ticket.called_event.wait()
        except trio.Cancelled:
            if ticket.called_event.is_set():
                self._wake_next()
            else:
                self._waiting.remove(ticket)
                heapq.heapify(self._waiting)
            raise

    def _wake_next(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting).called_event.set()
        else:
            self._free += 1
