"""Small HTTP server for /metrics and /healthz, on a port of its own: for operators, not for callers."""

from collections.abc import Callable
from typing import Final

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 8192
_PATIENCE: Final = 5.0  # seconds for one request and its answer
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"

# A method and a path (without its query) to a status line and a body.
Page = Callable[[bytes, bytes], tuple[bytes, bytes]]


async def serve_pages(
    host: str, port: int, page: Page, settings: str, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve `page` until cancelled. Starts with the port that was bound; Fatal, naming `settings`, when it is taken."""
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as error:
        raise Fatal(f"{settings}: {host}:{port}: {error.strerror or error}; choose another") from None
    bound = int(listener.extra(SocketAttribute.local_port))  # noqa: S610 - no Django here
    log.info("metrics served", host=host, port=bound)

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_PATIENCE):
                try:
                    await _answer(stream, page)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    async with listener:
        task_status.started(bound)
        await listener.serve(answer)


async def _answer(stream: SocketStream, page: Page) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive(4096)
        if len(head) > _LONGEST_HEAD:
            return
    method, _, rest = head.partition(b" ")
    status, body = page(method, rest.partition(b" ")[0].partition(b"?")[0])
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: " + _TEXT,
        b"content-length: " + str(len(body)).encode(),
        b"connection: close",
    ]
    await stream.send(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
