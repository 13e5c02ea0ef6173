"""HTTP request and reply types of the routes, read from and written to ASGI messages."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, suppress
from typing import Any, Final

import anyio
import attrs

from common.refusal import Refused
from common.strict_json import parse
from svc.serve.keys import ApiKey
from svc.serve.problems import Problem, invalid_request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_AMOUNT_HEADER: Final = "x-svc-max-amount"
_MAX_AMOUNT_DIGITS: Final = 40
# Limits for slow clients. Otherwise a client that neither sends nor reads would count against `server.max_requests`
# forever.
_SILENCE_TIMEOUT_S: Final = 60.0
_MIN_BYTES_PER_SECOND: Final = 1 << 16


class ClientDisconnected(Exception):
    """The client closed the connection before it received the answer, or stopped reading."""


@attrs.define
class LocalRequest:
    """Request with an unread body."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    key: ApiKey
    request_id: str
    receive: Receive = attrs.field(repr=False)

    @property
    def max_amount(self) -> int | None:
        """Limit that the client sets for the cost, in base units. Raises Problem."""
        text = self.headers.get(_MAX_AMOUNT_HEADER)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_AMOUNT_DIGITS):
            raise invalid_request(
                f"{_MAX_AMOUNT_HEADER} must be a whole number of base units with at most {_MAX_AMOUNT_DIGITS} digits",
                _MAX_AMOUNT_HEADER,
            )
        return int(text)

    async def read_body(self, max_bytes: int) -> bytes:
        """Return the body. Raises Problem (413) and ClientDisconnected."""
        read = bytearray()
        async with aclosing(self.read_chunks()) as chunks:
            async for chunk in chunks:
                read += chunk
                if len(read) > max_bytes:
                    raise Problem(413, f"the body must have at most {max_bytes} bytes", code="body_too_large")
        return bytes(read)

    async def read_chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            message: Message = {}
            with anyio.move_on_after(_SILENCE_TIMEOUT_S):
                message = await self.receive()
            if not message:
                raise Problem(408, f"no byte of the body arrived for {_SILENCE_TIMEOUT_S:g} s", code="body_too_slow")
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def read_json(self, max_bytes: int) -> dict[str, Any]:
        """Return the body, which must be a JSON object. Raises Problem."""
        content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise Problem(415, "content-type must be application/json", param="content-type")
        try:
            value = parse(await self.read_body(max_bytes))
        except Refused as refusal:
            raise invalid_request(f"the body must be JSON: {refusal.message}") from None
        if not isinstance(value, dict):
            raise invalid_request("the body must be a JSON object")
        return value

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects. Call this only after the body has been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@attrs.frozen
class WholeReply:
    """Reply with a complete body: bytes, or a value that is encoded as JSON.

    `on_sent` is awaited after the body was sent. `on_closed` is always called, also after a disconnect.
    """

    body: Any
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    on_sent: Callable[[], Awaitable[None]] | None = None
    on_closed: Callable[[], None] = lambda: None


@attrs.frozen
class EventReply:
    """Reply with a stream of events. `on_sent` and `on_closed` work as in `WholeReply`."""

    events: AsyncGenerator[bytes, None]
    headers: Mapping[str, str]
    on_sent: Callable[[], Awaitable[None]]
    on_closed: Callable[[], None]


async def send_whole_reply(reply: WholeReply, common_headers: Mapping[str, str], send: Send) -> None:
    """Send the reply. Raises ClientDisconnected."""
    whole = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body, ensure_ascii=False).encode()
    content_type = {} if isinstance(reply.body, bytes) else {"content-type": "application/json"}
    try:
        await _start_response(
            send, reply.status, {**content_type, **reply.headers, **common_headers, "content-length": str(len(whole))}
        )
        await _send_body(send, whole)
        if reply.on_sent is not None:
            await reply.on_sent()
    finally:
        reply.on_closed()


async def send_event_reply(stream: EventReply, common_headers: Mapping[str, str], receive: Receive, send: Send) -> None:
    """Send the events as they arrive. Stop when the client disconnects or reads too slowly."""
    content_type = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    whole = False
    try:
        async with anyio.create_task_group() as tasks:

            async def cancel_at_disconnect() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel_at_disconnect)
            with suppress(ClientDisconnected):
                async with aclosing(stream.events) as events:
                    await _start_response(send, 200, {**content_type, **stream.headers, **common_headers})
                    async for event in events:
                        await _send_body(send, event, more=True)
                await _send_body(send, b"")
                whole = True
            tasks.cancel_scope.cancel()
        if whole:
            await stream.on_sent()
    finally:
        stream.on_closed()


async def _send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    with anyio.move_on_after(_SILENCE_TIMEOUT_S + len(body) / _MIN_BYTES_PER_SECOND) as waiting:
        await send({"type": "http.response.body", "body": body, "more_body": more})
    if waiting.cancelled_caught:
        raise ClientDisconnected


async def _start_response(send: Send, status: int, headers: Mapping[str, str]) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
