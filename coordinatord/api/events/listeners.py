"""Listeners to events: what each has still to be told, its place among those of its caller, and when it is cut.

A listener that follows costs memory for as long as it is there, and says nothing for hours: so there is a ceiling of
them for each caller and for the process, and none may be further behind than `MOST_BEHIND` events.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import attrs
import msgspec

from common.api.events import JOB_EVENTS, EventKind, EventsReset, JobEvent
from common.api.states import job_status
from common.scalars import hex_of
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable

MOST_BEHIND: Final = 2_000  # events that may lie ready for a listener when more come
PIECE_EVENTS: Final = 64  # of one write to a stream: some 30 kB, so that a reader that reads nothing costs little
_encode: Final = msgspec.json.Encoder().encode


def event_of(row: LoggedEvent) -> JobEvent | EventsReset:
    """A row of the log as it is sent."""
    if row.kind is EventKind.RESET:
        return EventsReset(str(row.id), "reset")
    return JobEvent(
        id=str(row.id),
        event=JOB_EVENTS[row.kind],
        taken_back=str(row.takes_back) if row.takes_back is not None else None,
        job_id=hex_of(row.job_id),
        owner=hex_of(row.owner),
        model_id=str(row.model_id),
        provider_id=str(row.provider_id),
        designated=str(row.designated),
        state=row.state,
        ended_because=row.ended_because,
        status=job_status(row.state, row.ended_because),
        block_number=str(row.block_number),
        block_time=str(row.block_time),
    )


def message(name: str, data: bytes, event_id: int) -> bytes:
    """One message of a stream. `data` is JSON, which has no line ends of its own."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, name.encode(), data)


def message_of(row: LoggedEvent) -> bytes:
    """Return the message of an event. It is encoded once, and kept with the event for all streams."""
    if row.message is None:
        event = event_of(row)
        text = message("taken_back" if row.takes_back is not None else event.event, _encode(event), row.id)
        object.__setattr__(row, "message", text)
        return text
    return row.message


class News:
    """Batch of up to PIECE_EVENTS events, shared by all listeners of one filter."""

    __slots__ = ("_text", "events")

    def __init__(self, events: Sequence[LoggedEvent], text: bytes | None = None) -> None:
        """`text` is given of news that are no events of the log."""
        self.events = events
        self._text = text

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = b"".join([message_of(event) for event in self.events])
        return self._text


Ended = Literal["slow", "stopping"]
Missed = Callable[[], Awaitable[News | None]]
"""Reads the next piece of the log. None once it has caught up with the log."""


class Listener:
    """Someone who follows the events of a filter. `wait` from one task, the rest from any of the event loop, which must
    be asyncio's: a future is the cheapest way to wait, and there are thousands of listeners."""

    __slots__ = ("_behind", "_due", "_missed", "_news", "_waiter", "ended", "wanted")

    def __init__(self, wanted: EventFilter, missed: Missed | None = None) -> None:
        """`missed` reads what came before, which is told first."""
        self.wanted = wanted
        self._missed = missed
        self.ended: Ended | None = None
        self._news: list[News] = []
        self._behind = 0
        self._due = False
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, news: News) -> None:
        if self._missed is not None and news.events:
            return  # it is still reading the log, and comes to these
        if self._behind > MOST_BEHIND:
            self.end("slow")
            return
        self._behind += max(1, len(news.events))
        self._news.append(news)
        self._wake()

    def beat(self) -> None:
        """Time to show that the stream lives."""
        self._due = True
        self._wake()

    def end(self, why: Ended) -> None:
        if self.ended is None:
            self.ended = why
            self._news = []
            self._wake()

    async def wait(self) -> list[News]:
        """Until there is something to tell; empty for a heartbeat, and once it has `ended`."""
        while self._missed is not None and self.ended is None:
            earlier = await self._missed()
            if earlier is not None:
                return [earlier]
            self._missed = None
        while not (self._news or self._due or self.ended):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        self._behind, self._due = 0, False
        return news

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def stream(
    listener: Listener, after: int, present: LoggedEvent | None = None, provisional: bytes = b""
) -> AsyncIterator[bytes]:
    """The bytes of `text/event-stream`, until the listener has ended. It begins with the id to come back with, and with
    `present` where that is told first: events up to its id are in it already."""
    yield opening(after)
    if present is not None:
        yield message_of(present)
    if provisional:
        yield provisional
    while True:
        news = await listener.wait()
        if listener.ended is not None:
            yield farewell(listener.ended)
            return
        if present is not None:
            news = [each for each in news if not each.events or each.events[-1].id > present.id]
        if not news:
            yield HEARTBEAT
        for piece in _pieces(news):
            yield piece


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


def opening(after: int) -> bytes:
    """The first words of a stream: when to come back, and with which id if nothing came before."""
    return b"retry: %d\nid: %d\n\n" % (pause_before_return(), after)


HEARTBEAT: Final = b":\n\n"
_FAREWELLS: Final[dict[Ended, bytes]] = {
    "slow": b": too far behind: come back with Last-Event-ID",
    "stopping": b": this process stops: come back with Last-Event-ID",
}


def farewell(why: Ended) -> bytes:
    """The last words of a stream."""
    metrics.event_listeners_ended.labels(why).inc()
    return b"%s\nretry: %d\n\n" % (_FAREWELLS[why], pause_before_return())


def pause_before_return() -> int:
    """Milliseconds that a reader is asked to wait before it comes back: spread, for all come back at once."""
    return random.randint(500, 3_000)  # noqa: S311 - spreads load


@attrs.define(slots=True)
class Places:
    """Ceilings of streams and of polls that wait: `most` in the process, `most_of_one` of a caller."""

    most: int
    most_of_one: int
    _taken: Counter[str] = attrs.field(factory=Counter, init=False)
    _all: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        metrics.event_listeners_most.set(self.most)

    def has_room(self, caller: str) -> bool:
        return self._all < self.most and self._taken[caller] < self.most_of_one

    @contextmanager
    def held(self, caller: str, kind: Literal["stream", "poll"]) -> Iterator[None]:
        """Raises Retryable where there is none."""
        if self._taken[caller] >= self.most_of_one:
            raise self._refused(
                "caller", "busy", f"at most {self.most_of_one} event streams and waiting polls of one caller"
            )
        if self._all >= self.most:
            raise self._refused(
                "refused", "not_ready", f"this process has its {self.most} event streams and waiting polls"
            )
        self._taken[caller] += 1
        self._all += 1
        metrics.event_listeners.labels(kind).inc()
        try:
            yield
        finally:
            metrics.event_listeners.labels(kind).dec()
            self._all -= 1
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

    def _refused(
        self, why: Literal["caller", "refused"], kind: Literal["busy", "not_ready"], message: str
    ) -> Retryable:
        metrics.event_listeners_ended.labels(why).inc()
        return Retryable(kind, f"{message}; poll instead, or try again later", retry_after=30)
