"""Listeners: readers of one filter's events, and the streams built from them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final

from common.api.events import EventKind
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.messages import HEARTBEAT, farewell, message_of, opening
from coordinatord.base import metrics

MAX_EVENTS_BEHIND: Final = 2_000
PIECE_EVENTS: Final = 64  # per write to a stream: some 30 kB, so that a stalled reader costs little memory


class News:
    """Batch of up to PIECE_EVENTS events, shared by all listeners of one filter."""

    __slots__ = ("_text", "events")

    def __init__(self, events: Sequence[LoggedEvent]) -> None:
        self.events = events
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = b"".join([message_of(event) for event in self.events])
        return self._text


Missed = Callable[[], Awaitable[News | None]]
"""Reads the next piece of the log. None once it has caught up with the log."""


class Listener:
    """Reader of the events of a filter, and of one job's progress. Call `wait` from one task, the rest from any task of
    the loop. The loop must be asyncio's, because its futures are the cheapest way for thousands of listeners to
    wait."""

    __slots__ = ("_behind", "_due", "_missed", "_news", "_progress", "_waiter", "ended", "wanted")

    def __init__(self, wanted: EventFilter, missed: Missed | None = None) -> None:
        """`missed` reads earlier events, which come first."""
        self.wanted = wanted
        self._missed = missed
        self.ended = False
        self._news: list[News] = []
        self._behind = 0
        self._progress: bytes | None = None
        self._due = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, news: News) -> None:
        """Queue events. A reader that falls too far behind gets a reset in their place."""
        if self._missed is not None:
            return  # the listener still replays the log, which includes these events
        if self._behind > MAX_EVENTS_BEHIND:
            metrics.connections_ended.labels("listener", "behind").inc()
            last = news.events[-1]
            news = News([LoggedEvent(last.id, EventKind.RESET, last.block_number, last.block_time)])
            self._news, self._behind = [], 0
        self._behind += len(news.events)
        self._news.append(news)
        self._wake()

    def notify_progress(self, message: bytes) -> None:
        """Store the message of the job's newest progress, in place of an unread one."""
        self._progress = message
        self._wake()

    def beat(self) -> None:
        """Wake the reader to send a heartbeat."""
        self._due = True
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._news, self._progress = [], None
        self._wake()

    async def wait(self) -> list[News]:
        """Wait for events. Return an empty list for progress, for a heartbeat, and after the end."""
        while self._missed is not None and not self.ended:
            earlier = await self._missed()
            if earlier is not None:
                return [earlier]
            self._missed = None
        while not (self._news or self._progress or self._due or self.ended):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        self._behind, self._due = 0, False
        return news

    def take_progress(self) -> bytes:
        """Return the message of the job's newest progress, or nothing if it was returned before."""
        message, self._progress = self._progress or b"", None
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def stream(listener: Listener, after: int, present: LoggedEvent | None = None) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream until the listener has ended. `after`: the id that the listener begins after.
    `present`: a state that comes first and covers the events up to its id."""
    yield opening(after)
    if present is not None:
        yield message_of(present)
    if progress := listener.take_progress():
        yield progress
    while True:
        news = await listener.wait()
        if listener.ended:
            yield farewell()
            return
        if present is not None:
            news = [each for each in news if each.events[-1].id > present.id]
        for piece in _pieces(news):
            yield piece
        if progress := listener.take_progress():
            yield progress
        elif not news:
            yield HEARTBEAT


def _pieces(news: Sequence[News]) -> Iterator[bytes]:
    """Join news into pieces of a bounded number of events."""
    texts: list[bytes] = []
    events = 0
    for each in news:
        if texts and events + len(each.events) > PIECE_EVENTS:
            yield b"".join(texts)
            texts, events = [], 0
        texts.append(each.text)
        events += len(each.events)
    if texts:
        yield b"".join(texts)
