"""A request and its answer as the routes see them: read from and written to ASGI messages."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any

import anyio
import attrs

from common.refusal import Refused
from common.strict_json import parse
from svc.serve.keys import ApiKey
from svc.serve.problems import Problem, invalid

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class RequesterGone(Exception):
    """The connection ended before its answer did."""


@attrs.define
class LocalRequest:
    """One request, its body unread."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    key: ApiKey
    request_id: str
    receive: Receive = attrs.field(repr=False)

    async def body(self, longest: int) -> bytes:
        """Raises Problem (413), RequesterGone."""
        read = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                read += piece
                if len(read) > longest:
                    raise Problem(413, f"the body must have at most {longest} bytes", code="body_too_large")
        return bytes(read)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RequesterGone
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def json(self, longest: int) -> dict[str, Any]:
        """The body as an object. Raises Problem."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "content-type must be application/json", param="content-type")
        try:
            value = parse(await self.body(longest))
        except Refused as refusal:
            raise invalid(f"the body must be JSON: {refusal.message}") from None
        if not isinstance(value, dict):
            raise invalid("the body must be a JSON object")
        return value

    async def until_gone(self) -> None:
        """Once the body was read: until the caller has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@attrs.frozen
class WholeReply:
    """A whole answer: JSON unless it is bytes. `sent` is awaited once all of it has gone out; `left` is called however
    it ends."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    sent: Callable[[], Awaitable[None]] | None = None
    left: Callable[[], None] = lambda: None


@attrs.frozen
class EventReply:
    """An answer of events; closed on the way out. `sent` and `left` as of a `WholeReply`."""

    events: AsyncGenerator[bytes, None]
    headers: Mapping[str, str]
    sent: Callable[[], Awaitable[None]]
    left: Callable[[], None]


async def send_whole(reply: WholeReply, told: Mapping[str, str], send: Send) -> None:
    whole = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body, ensure_ascii=False).encode()
    kind = {} if isinstance(reply.body, bytes) else {"content-type": "application/json"}
    try:
        await _start(send, reply.status, {**kind, **reply.headers, **told, "content-length": str(len(whole))})
        await send({"type": "http.response.body", "body": whole})
        if reply.sent is not None:
            await reply.sent()
    finally:
        reply.left()


async def send_events(stream: EventReply, told: Mapping[str, str], receive: Receive, send: Send) -> None:
    """The events as they come; none of them are asked for any more once the caller has gone."""
    kind = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
    whole = False
    try:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            async with aclosing(stream.events) as events:
                await _start(send, 200, {**kind, **stream.headers, **told})
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            whole = True
            tasks.cancel_scope.cancel()
        if whole:
            await stream.sent()
    finally:
        stream.left()


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
