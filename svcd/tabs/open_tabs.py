"""Open tabs of this daemon: their limits, and the frames that arrive for them."""

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from common.tab.terms import MAX_TABS_PER_OWNER
from svcd.base import metrics
from svcd.journal.slots import Slots
from svcd.tabs.channel_end import Route

_MAX_INBOX_FRAMES: Final = 64
_TOKEN_BYTES: Final = 32


@attrs.frozen(slots=True, eq=False)
class OpenTab:
    """Open tab with its inbox and outbox. `token` authenticates the tab's owner at the direct endpoint."""

    job_id: bytes
    owner: bytes
    model: str
    token: str = attrs.field(repr=False)
    _inbox_sender: trio.MemorySendChannel[tuple[Route, bytes]]
    inbox: trio.MemoryReceiveChannel[tuple[Route, bytes]]
    outbox: "DirectOutbox"

    async def deliver(self, route: Route, frame: bytes) -> None:
        """Pass a frame to the tab. Wait while the tab's inbox is full."""
        await self._inbox_sender.send((route, frame))


@attrs.define(slots=True, eq=False)
class DirectOutbox:
    """Frames for the owner's stream at the direct endpoint. A new stream replaces the older stream."""

    is_closed: bool = False
    _newest_stream: int = 0
    _frames: list[bytes] | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, frames: list[bytes]) -> None:
        """Wait until a stream has received the frames."""
        while self._frames is not None:
            await self._changed.wait()
        self._frames = frames
        self._notify()
        try:
            while self._frames is frames:
                await self._changed.wait()
        finally:
            if self._frames is frames:  # cancelled
                self._frames = None
                self._notify()

    def close(self) -> None:
        """End the stream, because the tab has ended."""
        self.is_closed = True
        self._notify()

    def register_stream(self) -> int:
        """Register a new stream, which replaces the older stream. Return its number."""
        self._newest_stream += 1
        self._notify()
        return self._newest_stream

    async def receive(self, stream: int) -> list[bytes] | None:
        """Return the next frames for a stream, or None when the tab has ended or another stream is newer."""
        while self._newest_stream == stream and not self.is_closed:
            if self._frames is not None:
                frames, self._frames = self._frames, None
                self._notify()
                return frames
            await self._changed.wait()
        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@attrs.define(slots=True, eq=False)
class OpenTabs:
    """All open tabs. Tabs get at most half of the capacity and of a model's slots, so single jobs keep the rest."""

    slots: Slots
    _tabs: dict[bytes, OpenTab] = attrs.field(factory=dict)
    _by_token: dict[bytes, OpenTab] = attrs.field(factory=dict)

    @contextmanager
    def open_tab(self, job_id: bytes, owner: bytes, model: str) -> Iterator[OpenTab | None]:
        """Open a tab inside the `with` statement, and yield the tab. Yield None if too many tabs are open."""
        if not self._may_open(owner, model):
            yield None
            return
        inbox_sender, inbox = trio.open_memory_channel[tuple[Route, bytes]](_MAX_INBOX_FRAMES)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        tab = OpenTab(job_id, owner, model, token, inbox_sender, inbox, DirectOutbox())
        self._tabs[job_id] = self._by_token[_digest(token)] = tab
        metrics.tabs_open.labels(model).inc()
        try:
            yield tab
        finally:
            metrics.tabs_open.labels(model).dec()
            tab.outbox.close()
            del self._tabs[job_id], self._by_token[_digest(token)]

    def find_by_token(self, token: str) -> OpenTab | None:
        """Return the tab of a token. The duration of the lookup does not reveal any part of a valid token."""
        tab = self._by_token.get(_digest(token))
        return tab if tab is not None and hmac.compare_digest(tab.token.encode(), token.encode()) else None

    def _may_open(self, owner: bytes, model: str) -> bool:
        granted = (
            self.slots.total_slots
            if self.slots.granted_slots is None
            else min(self.slots.total_slots, self.slots.granted_slots)
        )
        tabs = self._tabs.values()
        return (
            len(tabs) < max(1, granted // 2)
            and sum(tab.model == model for tab in tabs) < max(1, self.slots.slots_by_model.get(model, 0) // 2)
            and sum(tab.owner == owner for tab in tabs) < MAX_TABS_PER_OWNER
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
