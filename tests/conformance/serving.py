"""Small HTTP/1.1 server for scripted markets: it can answer late, or take a request and never answer."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import attrs
import h11
import msgspec
from anyio.abc import SocketAttribute, SocketStream

_PIECE: Final = 65_536
_LONGEST_BODY: Final = 64 << 20
_READ_TIMEOUT_S: Final = 120.0


@attrs.frozen
class ServedRequest:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class ServedReply:
    """A response to send. With `lost`, the connection is closed without one."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    lost: bool = False

    @classmethod
    def json(cls, status: int, body: Any, **headers: str) -> "ServedReply":
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, msgspec.json.encode(body), {"content-type": "application/json", **told})


LOST: Final = ServedReply(lost=True)
Handler = Callable[[ServedRequest], Awaitable[ServedReply]]


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Yield the server's URL. Raise OSError if the port is in use."""
    listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    bound = int(listener.extra(SocketAttribute.local_port))  # noqa: S610 - no Django here

    async def converse(stream: SocketStream) -> None:
        async with stream:
            try:
                await _converse(stream, handler)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError, TimeoutError):
                return

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, converse)
        yield f"http://{host}:{bound}"
        tasks.cancel_scope.cancel()


async def _converse(stream: SocketStream, handler: Handler) -> None:
    """Serve one request after another, until either side closes."""
    connection = h11.Connection(h11.SERVER)
    while True:
        request = await _read(stream, connection)
        if request is None or request.method == "CONNECT":  # a successful CONNECT response would start a tunnel
            return
        reply = await handler(request)
        if reply.lost:
            return
        told_always = {"date": formatdate(usegmt=True), "x-request-id": secrets.token_hex(8)}
        headers = {"content-length": str(len(reply.body)), **told_always, **reply.headers}
        told = [(name, value) for name, value in headers.items() if reply.status != 304 or name != "content-type"]
        sent = connection.send(h11.Response(status_code=reply.status, headers=told)) or b""
        if request.method != "HEAD" and reply.status != 304:
            sent += connection.send(h11.Data(reply.body)) or b""
        await stream.send(sent + (connection.send(h11.EndOfMessage()) or b""))
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return
        connection.start_next_cycle()


async def _read(stream: SocketStream, connection: h11.Connection) -> ServedRequest | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                going_on = h11.InformationalResponse(status_code=100, headers=[])
                await stream.send(connection.send(going_on) or b"")
            with anyio.fail_after(_READ_TIMEOUT_S):
                try:
                    connection.receive_data(await stream.receive(_PIECE))
                except anyio.EndOfStream:
                    connection.receive_data(b"")
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _LONGEST_BODY:
                return None
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            try:
                target = urlsplit(head.target.decode("ascii"))
            except ValueError:  # "//[" is not a valid address
                return None
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
            query = dict(parse_qsl(target.query))
            return ServedRequest(head.method.decode("ascii"), target.path, query, headers, bytes(body))
        else:
            return None
