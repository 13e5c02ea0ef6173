"""Streams of this process that deliver the frames of tabs to clients."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal

import anyio

from coordinatord.api.events.listeners import HEARTBEAT_INTERVAL_S
from coordinatord.api.events.messages import HEARTBEAT, reconnect_delay_ms
from coordinatord.api.tabs.tabs_sql import ReaderKey
from coordinatord.base import metrics

EndReason = Literal["ended", "unclaimed", "replaced", "stopping"]

_LAST_MESSAGES: Final[dict[EndReason, bytes]] = {
    "ended": b"event: end\ndata: {}\n\n",
    "unclaimed": b": a reorganisation removed the claim\n\n",
    "replaced": b": a newer stream reads this tab\n\n",
    "stopping": b": this process stops: connect again\n\n",
}


class TabReader:
    """Stream of the frames of one tab and direction."""

    def __init__(self, job_id: bytes, *, to_owner: bool) -> None:
        self.key = ReaderKey(job_id, to_owner, secrets.randbits(63))
        self.end: EndReason | None = None
        self.after = 0  # id of the last row that was delivered
        self._events: list[bytes] = []
        self._changed = anyio.Event()

    @property
    def is_free(self) -> bool:
        """Return True if no delivered frame waits for the client. Further frames of a slow client stay in the table."""
        return self.end is None and not self._events

    def deliver(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Queue the events of these (row id, events) pairs for the client."""
        self.after = rows[-1][0]
        self._events.extend(events for _, events in rows)
        self._changed.set()

    def finish(self, end: EndReason) -> None:
        """End the stream after the queued events."""
        if self.end is None:
            self.end = end
            if end == "stopping":
                metrics.connections_ended.labels("listener", end).inc()
            self._changed.set()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the stream until it ends."""
        yield b"retry: %d\n\n" % reconnect_delay_ms()
        while True:
            with anyio.move_on_after(HEARTBEAT_INTERVAL_S):
                await self._changed.wait()
            self._changed = anyio.Event()
            events, self._events = self._events, []
            if events:
                yield b"".join(events)
            elif self.end is not None:
                yield _LAST_MESSAGES[self.end]
                return
            else:
                yield HEARTBEAT
            if self.end is not None:
                self._changed.set()
