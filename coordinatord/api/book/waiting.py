"""Waiting polls, and the choice of the polls that a new job wakes.

A job goes to one provider, so waking every poll for its model would cost as much as short polls. New jobs wake as many
polls as they can fill, longest waiting first. A woken poll that cannot take the job (for example because its rates are
too high) wakes the next one. So does a poll that ends before it has looked. The same news wakes no poll twice.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from common.api.events import EventKind
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.events.events_sql import LoggedEvent

_FREES: Final = frozenset({EventKind.SETTLED, EventKind.FAILED, EventKind.RECLAIMED})


class WaitingPoll:
    """Poll that waits. Call `wait` from its own task, in an asyncio loop."""

    __slots__ = ("_future", "_looking", "_woken", "free", "heard_news", "heard_offers", "pending", "poller")

    def __init__(self, poller: PollKey, free: int, news: int, offers: int, *, pending: bool = False) -> None:
        self.poller = poller
        self.free = free
        self.pending = pending
        # Numbers of the last news and of the last offer that woke the poll, or that came before the poll.
        self.heard_news = news
        self.heard_offers = offers
        self._woken = self._looking = False
        self._future: asyncio.Future[None] | None = None

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`. Return True when woken."""
        if not self._woken:
            self._future = asyncio.get_running_loop().create_future()
            with anyio.move_on_after(seconds):
                await self._future
            self._future = None
        self._looking, self._woken = self._woken, False
        return self._looking

    def looked(self) -> None:
        """Record that the poll has looked since it was woken."""
        self._looking = False

    @property
    def has_not_looked(self) -> bool:
        return self._woken or self._looking

    def wake(self) -> None:
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


Queue = dict[WaitingPoll, None]  # by time of arrival


class WaitingPolls:
    """Waiting polls of a process. `hear` watches the event hub, `offered` the notices of pending offers."""

    def __init__(self) -> None:
        self._of_model: defaultdict[int, Queue] = defaultdict(dict)
        self._of_provider: defaultdict[int, Queue] = defaultdict(dict)
        self._news = 0
        self._offers = 0
        self.closed = False

    @contextmanager
    def waiting(self, poller: PollKey, free: int, *, pending: bool = False) -> Iterator[WaitingPoll]:
        """Register a poll. Enter before its first look, so that no news after the look is missed."""
        poll = WaitingPoll(poller, free, self._news, self._offers, pending=pending)
        queues = ((self._of_model, poller.model_id), (self._of_provider, poller.provider_id))
        for queue, key in queues:
            queue[key][poll] = None
        try:
            yield poll
        finally:
            for queue, key in queues:
                del queue[key][poll]
                if not queue[key]:
                    del queue[key]
            if poll.has_not_looked and not self.closed:
                self.pass_on(poll)
                self.pass_offer_on(poll)

    def hear(self, events: Sequence[LoggedEvent]) -> None:
        """Wake polls for these events. An empty list means that the process stops, and wakes every poll."""
        self._news += 1
        self.closed = self.closed or not events
        if self.closed or any(event.kind is EventKind.RESET for event in events):
            for queue in [*self._of_model.values()]:
                _wake(queue)
            return
        bids: Counter[int] = Counter()
        for event in events:
            if _opens(event):
                if event.designated:
                    _wake(self._of_provider.get(event.designated, ()))
                else:
                    bids[event.model_id] += 1
            elif event.kind in _FREES and event.takes_back is None:
                _wake(self._of_provider.get(event.provider_id, ()))  # the provider may have been at its capacity
        for model_id, jobs in bids.items():
            self._wake_for(model_id, jobs)

    def offered(self, model_id: int, designated: int) -> None:
        """Wake the poll that has waited longest for pending offers."""
        self._offers += 1
        queue = self._of_provider.get(designated, ()) if designated else self._of_model.get(model_id, ())
        self._wake_for_offer(queue, model_id)

    def pass_on(self, poll: WaitingPoll) -> None:
        """Wake another poll for a job that this poll cannot take."""
        self._wake_for(poll.poller.model_id, 1)

    def pass_offer_on(self, poll: WaitingPoll) -> None:
        """Wake another poll for an offer that `poll` did not take."""
        model_id = poll.poller.model_id
        self._wake_for_offer(self._of_model.get(model_id, ()), model_id)

    def _wake_for_offer(self, queue: Iterable[WaitingPoll], model_id: int) -> None:
        for poll in queue:
            if poll.pending and poll.poller.model_id == model_id and poll.heard_offers < self._offers:
                poll.heard_offers = self._offers
                poll.wake()
                return

    def _wake_for(self, model_id: int, jobs: int) -> None:
        for poll in self._of_model.get(model_id, ()):
            if jobs <= 0:
                return
            if poll.heard_news < self._news:
                poll.heard_news = self._news
                poll.wake()
                jobs -= poll.free


def _opens(event: LoggedEvent) -> bool:
    """Return True for an event that may open a job: a post, or a reorg that removes its claim or its end."""
    return (event.kind is EventKind.POSTED) == (event.takes_back is None)


def _wake(polls: Iterable[WaitingPoll]) -> None:
    for poll in polls:
        poll.wake()
