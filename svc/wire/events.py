"""Changes heard of as they happen, by server-sent events, so that a wait need not poll.

What is heard is believed in nothing: it only says that a look is worth while, and when none is. Without events (an
older coordinator, a proxy that keeps them, a connection that breaks) a wait polls as if there were none.
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

QUIET: Final = 25.0  # seconds between looks while events come; a heartbeat comes sooner, or they do not
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_STREAM: Final = "text/event-stream"
_MAX_MESSAGE_BYTES: Final = 1 << 20

# Runs its argument with the headers that the route wants.
Authorised = Callable[[Callable[[dict[str, str]], Awaitable[None]]], Awaitable[None]]
Take = Callable[[bytes], bool]  # True for a message that it has read, and that is worth a look


async def messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """Yield the `data` of each complete message, and None for each piece. Raise ConnectionFailed for a message that is
    too long."""
    reader = EventReader()
    async for piece in pieces:
        yield None
        for data in reader.feed(piece):
            yield data
        if reader.unfinished_bytes > _MAX_MESSAGE_BYTES:
            raise ConnectionFailed("an event without an end")


@attrs.define(eq=False)
class ToldChanges:
    """`status`: of what is waited for, as it was last read; an event of it is none, nor one of an `ignored`."""

    transport: Transport
    take: Take = lambda _: False
    ignored: Collection[str] = ()
    status: str | None = None
    _wanted: anyio.Event = attrs.field(factory=anyio.Event)
    _heard: anyio.Event = attrs.field(factory=anyio.Event)
    _heard_at: float = float("-inf")

    @property
    def live(self) -> bool:
        """True while a change would be heard of."""
        return anyio.current_time() - self._heard_at < QUIET

    def listen(self) -> None:
        """From now on: there is something to follow."""
        self._wanted.set()

    async def pause(self, polling: float, streaming: float) -> None:
        """Until a change is heard of: `streaming` seconds at most while a stream would tell, else `polling` (fewer)."""
        async with anyio.create_task_group() as tasks:

            async def heard() -> None:
                await self._heard.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(heard)
            await self.transport.sleep(polling)
            if self.live:  # maybe since just now: what is known was told once more, and nothing else
                await self.transport.sleep(streaming - polling)
            tasks.cancel_scope.cancel()
        if self._heard.is_set():
            self._heard = anyio.Event()

    async def follow(self, path: str, authorised: Authorised) -> None:
        """Until cancelled, or until it is clear that there are no events to be had."""
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
            attempt = 0 if anyio.current_time() - began > _LONGEST_PAUSE else attempt + 1
            await anyio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempt, 8)))

    async def _once(self, path: str, headers: Mapping[str, str]) -> None:
        asked = {**headers, "accept": _STREAM}
        try:
            async with opened(self.transport.http, "GET", path, headers=asked) as response:
                if is_of_proxy(response):
                    raise ConnectionFailed(f"GET {path}: a proxy answered {response.status_code}")
                if response.is_error:
                    raise error_of(await whole(response))
                if not response.headers.get("content-type", "").startswith(_STREAM):
                    raise ConnectionFailed(f"GET {path} is answered with another kind of body")
                async with raw_pieces(response) as pieces:
                    async for data in messages(pieces):
                        self._came(data)
        except httpx.RequestError as failed:
            raise ConnectionFailed(f"GET {path}: {type(failed).__name__}") from failed

    def _came(self, data: bytes | None) -> None:
        self._heard_at = anyio.current_time()
        known = () if self.status is None else (self.status, *self.ignored)
        if data is not None and (self.take(data) or _status_in(data) not in known):
            self._heard.set()

    def _lost(self) -> None:
        """One more look: what happened since the last one may not have been told."""
        if self.live:
            self._heard.set()
        self._heard_at = float("-inf")


def _status_in(data: bytes) -> Any:
    try:
        said = strict_json.parse(data)
    except Refused:
        return None
    return said.get("status") if isinstance(said, dict) and said.get("taken_back") is None else None


@asynccontextmanager
async def changes_of(
    transport: Transport, path: str, authorised: Authorised, take: Take = lambda _: False, ignored: Collection[str] = ()
) -> AsyncIterator[ToldChanges]:
    """Changes that the stream at `path` tells of, once `listen` is called, while the block runs."""
    changes = ToldChanges(transport, take, ignored)
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
    """For a public route."""
    await ask({})
