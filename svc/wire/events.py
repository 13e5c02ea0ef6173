"""Listen for changes through server-sent events, so that waits do not have to poll.

An event is not trusted. It only makes a wait read the object again. If no events arrive (from an older coordinator,
through a buffering proxy or after a lost connection), the wait polls.
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
from svc.wire.answers import open_response, raw_pieces, read_response
from svc.wire.server_sent_events import EventReader
from svc.wire.transport import Transport, is_from_proxy, read_error

# A stream without an event or heartbeat for this time counts as lost.
STREAM_TIMEOUT_S: Final = 25.0
_FIRST_RECONNECT_PAUSE_S: Final = 1.0
_MAX_RECONNECT_PAUSE_S: Final = 30.0
_EVENT_STREAM_TYPE: Final = "text/event-stream"
_MAX_MESSAGE_BYTES: Final = 1 << 20

# Calls its argument with the HTTP headers that the route requires.
CallWithHeaders = Callable[[Callable[[dict[str, str]], Awaitable[None]]], Awaitable[None]]
OnMessage = Callable[[bytes], bool]  # returns True if the wait should read the object again


async def read_messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """Yield None for each piece, to show that the stream is live, then the `data` of each completed message.

    Raises ConnectionFailed if a message is too long.
    """
    reader = EventReader()
    async for piece in pieces:
        yield None
        for data in reader.feed(piece):
            yield data
        if reader.unfinished_bytes > _MAX_MESSAGE_BYTES:
            raise ConnectionFailed(f"an event is longer than {_MAX_MESSAGE_BYTES} bytes")


@attrs.define(eq=False)
class ChangeListener:
    """Listens for changes of one object. Callers set `status` to the object's status after each read.

    Events with this status, or with a status in `ignored`, end a pause only if `on_message` returns True.
    """

    transport: Transport
    on_message: OnMessage = lambda _: False
    ignored: Collection[str] = ()
    status: str | None = None
    _listen_called: anyio.Event = attrs.field(factory=anyio.Event)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)
    _received_at: float = float("-inf")

    @property
    def is_live(self) -> bool:
        """Return True if an event or heartbeat arrived within STREAM_TIMEOUT_S."""
        return anyio.current_time() - self._received_at < STREAM_TIMEOUT_S

    def listen(self) -> None:
        """Start following the stream."""
        self._listen_called.set()

    async def pause(self, polling_s: float, streaming_s: float) -> None:
        """Sleep until a change is reported.

        Sleep at most `streaming_s` seconds while the stream is live, and otherwise at most `polling_s`, the shorter
        time.
        """
        async with anyio.create_task_group() as tasks:

            async def wait_for_change() -> None:
                await self._changed.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_change)
            await self.transport.sleep(polling_s)
            if self.is_live:  # the stream may have become live during the sleep
                await self.transport.sleep(streaming_s - polling_s)
            tasks.cancel_scope.cancel()
        if self._changed.is_set():
            self._changed = anyio.Event()

    async def follow(self, path: str, authorised: CallWithHeaders) -> None:
        """Wait for `listen`, then follow the stream and reconnect, until an error that must not be retried."""
        await self._listen_called.wait()
        attempt = 0
        while True:
            started_at = anyio.current_time()
            try:
                await authorised(lambda headers: self._follow_once(path, headers))
            except ConnectionFailed:
                pass
            except ApiError as refused:
                if not refused.retryable:
                    return
            finally:
                self._on_lost_stream()
            attempt = 0 if anyio.current_time() - started_at > _MAX_RECONNECT_PAUSE_S else attempt + 1
            await anyio.sleep(min(_MAX_RECONNECT_PAUSE_S, _FIRST_RECONNECT_PAUSE_S * 2.0 ** min(attempt, 8)))

    async def _follow_once(self, path: str, headers: Mapping[str, str]) -> None:
        request_headers = {**headers, "accept": _EVENT_STREAM_TYPE}
        try:
            async with open_response(self.transport.http, "GET", path, headers=request_headers) as response:
                if is_from_proxy(response):
                    raise ConnectionFailed(f"GET {path}: a proxy answered {response.status_code}")
                if response.is_error:
                    raise read_error(await read_response(response))
                if not response.headers.get("content-type", "").startswith(_EVENT_STREAM_TYPE):
                    raise ConnectionFailed(f"GET {path}: the content type of the answer is not {_EVENT_STREAM_TYPE}")
                async with raw_pieces(response) as pieces:
                    async for data in read_messages(pieces):
                        self._receive(data)
        except httpx.RequestError as failed:
            raise ConnectionFailed(f"GET {path}: {type(failed).__name__}") from failed

    def _receive(self, data: bytes | None) -> None:
        self._received_at = anyio.current_time()
        known = () if self.status is None else (self.status, *self.ignored)
        if data is not None and (self.on_message(data) or _read_status(data) not in known):
            self._changed.set()

    def _on_lost_stream(self) -> None:
        """End the current pause, because changes since the last event may have been missed."""
        if self.is_live:
            self._changed.set()
        self._received_at = float("-inf")


def _read_status(data: bytes) -> Any:
    try:
        body = strict_json.parse(data)
    except Refused:
        return None
    return body.get("status") if isinstance(body, dict) and body.get("taken_back") is None else None


@asynccontextmanager
async def open_change_listener(
    transport: Transport,
    path: str,
    authorised: CallWithHeaders,
    on_message: OnMessage = lambda _: False,
    ignored: Collection[str] = (),
) -> AsyncIterator[ChangeListener]:
    """Yield a listener for the stream at `path`. The listener opens the stream once `listen` is called."""
    changes = ChangeListener(transport, on_message, ignored)
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


async def call_without_session(send: Callable[[dict[str, str]], Awaitable[None]]) -> None:
    """Call `send` without headers, for a public route."""
    await send({})
