"""Small HTTP server for /metrics, /healthz and pages of operators, on a port of its own: not for callers."""

from collections.abc import Callable
from typing import Final

import anyio
import attrs
import structlog
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 8192
_PATIENCE: Final = 5.0  # seconds for one request and its answer
_TEXT: Final = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


@attrs.frozen(slots=True)
class PageAnswer:
    """`status`: the status line's, with its words."""

    status: bytes
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = _TEXT


# A method and a path (without its query) to what is answered.
Page = Callable[[bytes, bytes], PageAnswer]


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
    answer = page(method, rest.partition(b" ")[0].partition(b"?")[0])
    lines = [
        b"HTTP/1.1 " + answer.status,
        *(name + b": " + value for name, value in answer.headers),
        b"content-length: " + str(len(answer.body)).encode(),
        b"connection: close",
    ]
    await stream.send(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else answer.body))
