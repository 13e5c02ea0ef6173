"""Listeners: readers of one filter's events, and the streams built from them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from coordinatord.api.events.events_sql import EventFilter, LoggedEvent, to_reset_event
from coordinatord.api.events.messages import HEARTBEAT, closing_message, event_message, opening_message
from coordinatord.base import metrics

MAX_EVENTS_BEHIND: Final = 2_000
MAX_EVENTS_PER_PIECE: Final = 64  # per write to a stream: some 30 kB, so that a stalled reader costs little memory
HEARTBEAT_INTERVAL_S: Final = 20.0  # most proxies time out after 60 s


class Listener:
    """Receives the events that match a filter. Call `wait` from one task, and the other methods from any task of the
    loop. The loop must be asyncio's, because its futures and timers are the cheapest way for thousands of listeners to
    wait."""

    __slots__ = ("_heartbeat_at", "_queue", "_replay", "_waiter", "_woken", "ended", "event_filter", "is_idle")

    def __init__(self, event_filter: EventFilter, replay: AsyncIterator[Sequence[LoggedEvent]] | None = None) -> None:
        """`replay` yields earlier events, which the listener returns first."""
        self.event_filter = event_filter
        self.ended = False
        self.is_idle = False  # True if the last wait ended because it was time for a heartbeat
        self._replay = replay
        self._queue: list[LoggedEvent] = []
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._heartbeat_at = asyncio.get_running_loop().time() + HEARTBEAT_INTERVAL_S

    def notify(self, events: Sequence[LoggedEvent]) -> None:
        """Queue events. A reader that is too far behind gets a reset in place of the queued events."""
        if self._replay is not None:
            return  # the listener still replays the log, which includes these events
        if len(self._queue) > MAX_EVENTS_BEHIND:
            metrics.connections_ended.labels("listener", "behind").inc()
            self._queue = [to_reset_event(events[-1])]
        else:
            self._queue += events
        self._wake()

    def wake(self) -> None:
        """Make the current or the next `wait` return."""
        self._woken = True
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    async def wait(self) -> Sequence[LoggedEvent]:
        """Wait for events. Return no events when woken, when it is time for a heartbeat, and after the end."""
        if self._replay is not None and not self.ended:
            if (piece := await anext(self._replay, None)) is not None:
                return piece
            self._replay = None
        loop = asyncio.get_running_loop()
        while not (self._queue or self._woken or self.ended) and loop.time() < self._heartbeat_at:
            self._waiter = loop.create_future()
            timer = loop.call_at(self._heartbeat_at, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._woken = False
        self.is_idle = loop.time() >= self._heartbeat_at
        if self.is_idle:
            self._heartbeat_at = loop.time() + HEARTBEAT_INTERVAL_S
        events, self._queue = self._queue, []
        return () if self.ended else events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def stream_events(
    listener: Listener,
    after: int,
    current: LoggedEvent | None = None,
    read_progress: Callable[[], Awaitable[bytes]] | None = None,
) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream until the listener has ended. The listener begins after the id `after`. `current` is
    a job's current state, which is sent first and covers the events up to its id. `read_progress` returns a message if
    the job's progress has changed, otherwise b""."""
    yield opening_message(after)
    if current is not None:
        yield event_message(current)
    if read_progress is not None and (message := await read_progress()):
        yield message
    while True:
        events = await listener.wait()
        if listener.ended:
            yield closing_message()
            return
        messages = [event_message(event) for event in events if current is None or event.id > current.id]
        for index in range(0, len(messages), MAX_EVENTS_PER_PIECE):
            yield b"".join(messages[index : index + MAX_EVENTS_PER_PIECE])
        if read_progress is not None and (message := await read_progress()):
            yield message
        elif listener.is_idle and not events:
            yield HEARTBEAT
