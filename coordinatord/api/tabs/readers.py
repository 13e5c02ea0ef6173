"""Streams of this process that deliver the frames of tabs to clients. A tab is a claimed job whose owner and provider
exchange sealed frames."""

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
        self.end_reason: EndReason | None = None
        self.last_row_id = 0  # id of the last row that was delivered
        self._events: list[bytes] = []
        self._changed = anyio.Event()

    @property
    def is_free(self) -> bool:
        """Return True if no queued frame waits to be sent. Otherwise, further frames for the client stay in the
        table."""
        return self.end_reason is None and not self._events

    def deliver(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Queue the events of these (row id, events) pairs for the client."""
        self.last_row_id = rows[-1][0]
        self._events.extend(events for _, events in rows)
        self._changed.set()

    def finish(self, reason: EndReason) -> None:
        """End the stream after the queued events."""
        if self.end_reason is None:
            self.end_reason = reason
            if reason == "stopping":
                metrics.connections_ended.labels("listener", reason).inc()
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
            elif self.end_reason is not None:
                yield _LAST_MESSAGES[self.end_reason]
                return
            else:
                yield HEARTBEAT
            if self.end_reason is not None:
                self._changed.set()
