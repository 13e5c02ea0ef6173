"""GET /metrics and GET /healthz, on a port of their own: for operators and their tools, not for the market."""

from collections.abc import Callable
from typing import Final

import structlog
import trio
from prometheus_client import generate_latest

from svcd.health import Health
from svcd.metrics import REGISTRY
from svcd.trouble import Fatal

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 8192
_PATIENCE: Final = 5.0
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


async def serve_metrics(
    host: str, port: int, health: Health, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled. Tells its port when it listens; Fatal when it cannot."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as taken:
        raise Fatal(f"metrics cannot be served on {host}, port {port}: {taken.strerror or taken}") from None
    bound = int(listeners[0].socket.getsockname()[1])
    log.info("metrics served", host=host, port=bound)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(_PATIENCE):
                try:
                    await _answer(stream, lambda path: _page(path, health))
                except trio.BrokenResourceError:
                    return

    task_status.started(bound)
    await trio.serve_listeners(answer, listeners)


def _page(path: bytes, health: Health) -> tuple[bytes, bytes]:
    match path:
        case b"/metrics":
            return b"200 OK", generate_latest(REGISTRY)
        case b"/healthz":
            return (b"200 OK", b"ok\n") if health.trouble is None else (b"503 Service Unavailable", b"unhealthy\n")
        case _:
            return b"404 Not Found", b"only /metrics and /healthz\n"


async def _answer(stream: trio.SocketStream, page: Callable[[bytes], tuple[bytes, bytes]]) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        received = await stream.receive_some(4096)
        head += received
        if not received or len(head) > _LONGEST_HEAD:
            return
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, body = page(path) if method in (b"GET", b"HEAD") else (b"405 Method Not Allowed", b"only GET\n")
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: " + _TEXT,
        b"content-length: " + str(len(body)).encode(),
        b"connection: close",
    ]
    await stream.send_all(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
