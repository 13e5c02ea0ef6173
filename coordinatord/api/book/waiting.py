"""Waiting polls, and the choice of the polls that a new job wakes.

A job goes to one provider. Waking every poll for its model would cost as much as polls that do not wait. So new jobs
wake only as many polls as they can fill, longest waiting first. A woken poll that cannot take the job (for example
because its rates are too high) wakes the next poll. So does a woken poll that ends before it has looked for jobs. The
same news wakes each poll at most once.
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

_FREEING_EVENTS: Final = frozenset({EventKind.SETTLED, EventKind.FAILED, EventKind.RECLAIMED})


class WaitingPoll:
    """Poll that waits. Call `wait` from the task of the poll, in an asyncio loop."""

    __slots__ = ("_future", "_is_searching", "_woken", "free_slots", "poller", "seen_news_count", "wants_offers")

    def __init__(self, poller: PollKey, free_slots: int, news_seen: int, *, wants_offers: bool = False) -> None:
        self.poller = poller
        self.free_slots = free_slots
        self.wants_offers = wants_offers
        self.seen_news_count = news_seen  # number of the last news that woke the poll, or that came before the poll
        self._woken = self._is_searching = False
        self._future: asyncio.Future[None] | None = None

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`. Return True when woken."""
        if not self._woken:
            self._future = asyncio.get_running_loop().create_future()
            with anyio.move_on_after(seconds):
                await self._future
            self._future = None
        self._is_searching, self._woken = self._woken, False
        return self._is_searching

    def mark_searched(self) -> None:
        """Record that the poll has looked for jobs since it was woken."""
        self._is_searching = False

    @property
    def is_search_pending(self) -> bool:
        return self._woken or self._is_searching

    def wake(self) -> None:
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


PollQueue = dict[WaitingPoll, None]  # polls in the order of their arrival


class WaitingPolls:
    """Waiting polls of a process. The event hub calls `on_events`. Notices of offers call `wake_for_offer`."""

    def __init__(self) -> None:
        self._by_model: defaultdict[int, PollQueue] = defaultdict(dict)
        self._by_provider: defaultdict[int, PollQueue] = defaultdict(dict)
        self._news_count = 0  # grows with each batch of events and each offer
        self.closed = False

    @contextmanager
    def register(self, poller: PollKey, free_slots: int, *, wants_offers: bool = False) -> Iterator[WaitingPoll]:
        """Register a poll while the `with` block runs. The caller looks for jobs inside the block, so that it misses no
        news after it has looked."""
        poll = WaitingPoll(poller, free_slots, self._news_count, wants_offers=wants_offers)
        queues = ((self._by_model, poller.model_id), (self._by_provider, poller.provider_id))
        for queue, key in queues:
            queue[key][poll] = None
        try:
            yield poll
        finally:
            for queue, key in queues:
                del queue[key][poll]
                if not queue[key]:
                    del queue[key]
            if poll.is_search_pending and not self.closed:
                self.wake_another(poll)
                self.wake_another_for_offer(poll)

    def on_events(self, events: Sequence[LoggedEvent]) -> None:
        """Wake polls for these events. An empty list means that the process stops, and wakes every poll."""
        self._news_count += 1
        self.closed = self.closed or not events
        if self.closed or any(event.kind is EventKind.RESET for event in events):
            for queue in [*self._by_model.values()]:
                _wake_all(queue)
            return
        bids: Counter[int] = Counter()
        for event in events:
            if _may_open_job(event):
                if event.designated:
                    _wake_all(self._by_provider.get(event.designated, ()))
                else:
                    bids[event.model_id] += 1
            elif event.kind in _FREEING_EVENTS and event.taken_back_id is None:
                _wake_all(self._by_provider.get(event.provider_id, ()))  # the provider may have been at its capacity
        for model_id, jobs in bids.items():
            self._wake_for(self._by_model.get(model_id, ()), model_id, jobs)

    def wake_for_offer(self, model_id: int, designated: int) -> None:
        """Wake the poll that has waited longest among the polls that may take this offer."""
        self._news_count += 1
        queue = self._by_provider.get(designated, ()) if designated else self._by_model.get(model_id, ())
        self._wake_for(queue, model_id, 1, is_offer=True)

    def wake_another(self, poll: WaitingPoll) -> None:
        """Wake another poll for a job that this poll cannot take."""
        model_id = poll.poller.model_id
        self._wake_for(self._by_model.get(model_id, ()), model_id, 1)

    def wake_another_for_offer(self, poll: WaitingPoll) -> None:
        """Wake another poll for an offer that `poll` did not take."""
        model_id = poll.poller.model_id
        self._wake_for(self._by_model.get(model_id, ()), model_id, 1, is_offer=True)

    def _wake_for(self, queue: Iterable[WaitingPoll], model_id: int, jobs: int, *, is_offer: bool = False) -> None:
        for poll in queue:
            if jobs <= 0:
                return
            if (
                poll.poller.model_id == model_id
                and poll.seen_news_count < self._news_count
                and (poll.wants_offers or not is_offer)
            ):
                poll.seen_news_count = self._news_count
                poll.wake()
                jobs -= poll.free_slots


def _may_open_job(event: LoggedEvent) -> bool:
    """Return True for an event that may open a job: a post, or a reorg that removes its claim or its end."""
    return (event.kind is EventKind.POSTED) == (event.taken_back_id is None)


def _wake_all(polls: Iterable[WaitingPoll]) -> None:
    for poll in polls:
        poll.wake()
