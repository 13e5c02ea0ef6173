"""Operators' port of a daemon: an ASGI application for /metrics and a few pages, and its listening socket.

Each daemon runs the application with its own HTTP server. Clients of the API must not reach this port.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

UNREAD_RESPONSE_TIMEOUT_MS: Final = 5000
TEXT_HEADERS: Final = ((b"content-type", b"text/plain; charset=utf-8"),)


@attrs.frozen(slots=True)
class OperatorsResponse:
    """HTTP response with a complete body."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = TEXT_HEADERS


@attrs.frozen(slots=True)
class OperatorsApp:
    """Serve `metrics` at /metrics, and `page(path, host)` elsewhere. `host` is the request's Host header.

    `page` returns None for a path that does not exist.
    """

    metrics: ASGIApp
    page: Callable[[str, str], Awaitable[OperatorsResponse | None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["method"] not in ("GET", "HEAD"):
            await _send_response(
                send,
                OperatorsResponse(405, b"method not allowed; use GET\n", (*TEXT_HEADERS, (b"allow", b"GET, HEAD"))),
            )
        elif scope["path"] == "/metrics":
            await self.metrics(scope, receive, send)
        else:
            host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
            page = await self.page(scope["path"], host)
            await _send_response(send, page or OperatorsResponse(404, b"page not found; try /metrics\n"))


def bind_operators_port(host: str, port: int, setting_names: str) -> socket.socket:
    """Bind the port and listen. If the port cannot be bound, raise Fatal with `setting_names` in the message.

    TCP_USER_TIMEOUT closes the connection of a client that does not read. Otherwise the HTTP server could wait for such
    a client forever, even during shutdown.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise Fatal(f"{setting_names}: {host}:{port}: {error.strerror or error}; choose another address") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_RESPONSE_TIMEOUT_MS)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        raise Fatal(f"{setting_names}: {host}:{port}: {error.strerror or error}; choose another address") from None
    log.info("metrics served", host=host, port=bound.getsockname()[1])
    return bound


async def _send_response(send: Send, page: OperatorsResponse) -> None:
    headers = [*page.headers, (b"content-length", str(len(page.body)).encode())]
    start: Message = {"type": "http.response.start", "status": page.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": page.body})
