"""Operators' port of a daemon: an ASGI application with /metrics and a few pages, and its bound socket.

Each daemon runs the application with its own HTTP server. Clients of the API must not reach this port.
"""

import socket
from collections.abc import Callable
from typing import Final

import attrs
import structlog

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

READ_TIMEOUT_MS: Final = 5000
TEXT: Final = ((b"content-type", b"text/plain; charset=utf-8"),)


@attrs.frozen(slots=True)
class Page:
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = TEXT


@attrs.frozen(slots=True)
class OperatorsApp:
    """Serve `metrics` at /metrics, and `page(path)` elsewhere. `page` returns None for a path that does not exist."""

    metrics: ASGIApp
    page: Callable[[str], Page | None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["method"] not in ("GET", "HEAD"):
            await _send(send, Page(405, b"method not allowed; use GET\n", (*TEXT, (b"allow", b"GET, HEAD"))))
        elif scope["path"] == "/metrics":
            await self.metrics(scope, receive, send)
        else:
            await _send(send, self.page(scope["path"]) or Page(404, b"page not found; try /metrics\n"))


def bind_operators_port(host: str, port: int, settings: str) -> socket.socket:
    """Bind the port. Fatal, naming `settings`, if the port is in use.

    The kernel closes the connection of a client that does not read. Without this, the HTTP server could wait for such a
    client forever, even during shutdown.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise Fatal(f"{settings}: {host}:{port}: {error.strerror or error}; choose another") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READ_TIMEOUT_MS)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        raise Fatal(f"{settings}: {host}:{port}: {error.strerror or error}; choose another") from None
    log.info("metrics served", host=host, port=bound.getsockname()[1])
    return bound


async def _send(send: Send, page: Page) -> None:
    headers = [*page.headers, (b"content-length", str(len(page.body)).encode())]
    start: Message = {"type": "http.response.start", "status": page.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": page.body})
