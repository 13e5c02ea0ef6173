"""/metrics on a port of its own: it is for operators, not for callers."""

from collections.abc import Callable

import anyio
import structlog
from anyio.abc import SocketStream, TaskStatus
from prometheus_client import generate_latest

from coordinatord.metrics import REGISTRY
from coordinatord.trouble import Fatal

log = structlog.get_logger(__name__)

_LONGEST_HEAD = 8192
_PATIENCE = 5.0


async def serve_metrics(
    host: str, port: int, refresh: Callable[[], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled; started when the port is taken, Fatal when it cannot be. `refresh` sets what is only worth
    knowing when somebody looks."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_PATIENCE):
                try:
                    await _answer(stream, refresh)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as trouble:
        raise Fatal(f"METRICS_HOST, METRICS_PORT: {host}:{port}: {trouble.strerror}") from None
    log.info("metrics served", host=host, port=port)
    task_status.started()
    await listener.serve(answer)


async def _answer(stream: SocketStream, refresh: Callable[[], None]) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive(4096)
        if len(head) > _LONGEST_HEAD:
            return
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method in (b"GET", b"HEAD") and path == b"/metrics":
        refresh()
        status, body = b"200 OK", generate_latest(REGISTRY)
    else:
        status, body = b"404 Not Found", b"only GET /metrics\n"
    length = str(len(body)).encode()
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: text/plain; version=0.0.4; charset=utf-8",
        b"content-length: " + length,
        b"connection: close",
    ]
    await stream.send(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
