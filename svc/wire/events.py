"""Changes reported by server-sent events, so that a wait does not need to poll.

Events are not trusted. They only decide when a wait reads again. Without events (an older coordinator, a proxy that
buffers them, a lost connection), the wait polls.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import httpx

from common import strict_json
from common.refusal import Refused
from svc.errors import ApiError, ConnectionFailed
from svc.wire.answers import opened, raw_pieces, whole
from svc.wire.server_sent_events import EventReader
from svc.wire.transport import Transport, error_of, is_of_proxy

# After this time without an event or heartbeat, the stream counts as lost.
QUIET_S: Final = 25.0
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0
_STREAM: Final = "text/event-stream"
_MAX_MESSAGE_BYTES: Final = 1 << 20

# Calls its argument with the headers that the route requires.
Authorised = Callable[[Callable[[dict[str, str]], Awaitable[None]]], Awaitable[None]]
Take = Callable[[bytes], bool]  # True if the wait should read again because of this message


async def messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """Yield None for each piece, then the `data` of each message that it completes. Raise ConnectionFailed if a message
    is too long."""
    reader = EventReader()
    async for piece in pieces:
        yield None
        for data in reader.feed(piece):
            yield data
        if reader.unfinished_bytes > _MAX_MESSAGE_BYTES:
            raise ConnectionFailed(f"an event is longer than {_MAX_MESSAGE_BYTES} bytes")


@attrs.define(eq=False)
class ChangeListener:
    """Changes of the object that a wait follows. `status` is its status when it was last read. Events with this status,
    or with one of `ignored`, do not end a pause."""

    transport: Transport
    take: Take = lambda _: False
    ignored: Collection[str] = ()
    status: str | None = None
    _wanted: anyio.Event = attrs.field(factory=anyio.Event)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)
    _received_at: float = float("-inf")

    @property
    def live(self) -> bool:
        """Return True while the stream delivers events or heartbeats."""
        return anyio.current_time() - self._received_at < QUIET_S

    def listen(self) -> None:
        """Start following the stream."""
        self._wanted.set()

    async def pause(self, polling: float, streaming: float) -> None:
        """Sleep until a change is reported, at most `streaming` seconds. Without a live stream, sleep at most `polling`
        seconds, a shorter time."""
        async with anyio.create_task_group() as tasks:

            async def wait_for_change() -> None:
                await self._changed.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_change)
            await self.transport.sleep(polling)
            if self.live:  # the stream may have become live during the sleep
                await self.transport.sleep(streaming - polling)
            tasks.cancel_scope.cancel()
        if self._changed.is_set():
            self._changed = anyio.Event()

    async def follow(self, path: str, authorised: Authorised) -> None:
        """Follow the stream until cancelled, or until the coordinator refuses it."""
        await self._wanted.wait()
        attempt = 0
        while True:
            began = anyio.current_time()
            try:
                await authorised(lambda headers: self._once(path, headers))
            except ConnectionFailed:
                pass
            except ApiError as refused:
                if not refused.retryable:
                    return
            finally:
                self._lost()
            attempt = 0 if anyio.current_time() - began > _MAX_PAUSE_S else attempt + 1
            await anyio.sleep(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 8)))

    async def _once(self, path: str, headers: Mapping[str, str]) -> None:
        asked = {**headers, "accept": _STREAM}
        try:
            async with opened(self.transport.http, "GET", path, headers=asked) as response:
                if is_of_proxy(response):
                    raise ConnectionFailed(f"GET {path}: a proxy answered {response.status_code}")
                if response.is_error:
                    raise error_of(await whole(response))
                if not response.headers.get("content-type", "").startswith(_STREAM):
                    raise ConnectionFailed(f"GET {path}: the answer is not {_STREAM}")
                async with raw_pieces(response) as pieces:
                    async for data in messages(pieces):
                        self._receive(data)
        except httpx.RequestError as failed:
            raise ConnectionFailed(f"GET {path}: {type(failed).__name__}") from failed

    def _receive(self, data: bytes | None) -> None:
        self._received_at = anyio.current_time()
        known = () if self.status is None else (self.status, *self.ignored)
        if data is not None and (self.take(data) or _status_in(data) not in known):
            self._changed.set()

    def _lost(self) -> None:
        """End the current pause, because changes since the last event may have been missed."""
        if self.live:
            self._changed.set()
        self._received_at = float("-inf")


def _status_in(data: bytes) -> Any:
    try:
        body = strict_json.parse(data)
    except Refused:
        return None
    return body.get("status") if isinstance(body, dict) and body.get("taken_back") is None else None


@asynccontextmanager
async def changes_of(
    transport: Transport, path: str, authorised: Authorised, take: Take = lambda _: False, ignored: Collection[str] = ()
) -> AsyncIterator[ChangeListener]:
    """Follow the stream at `path` while the block runs, from the call of `listen` on."""
    changes = ChangeListener(transport, take, ignored)
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.follow, path, authorised)
        try:
            yield changes
        except Exception as error:
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def unauthorised(ask: Callable[[dict[str, str]], Awaitable[None]]) -> None:
    """Call `ask` without headers, for a public route."""
    await ask({})
