"""Small HTTP server for /metrics, /healthz and pages of operators, on a port of its own: not for callers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import anyio
import attrs
import structlog
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 8192
_REQUEST_TIMEOUT_S: Final = 5.0
_MAX_CONNECTIONS: Final = 64
_ACCEPT_RETRY_S: Final = 1.0
TEXT: Final = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


@attrs.frozen(slots=True)
class PageAnswer:
    """`status`: the status line's, with its words."""

    status: bytes
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = TEXT


# A method and a path (without its query) to what is answered.
Page = Callable[[bytes, bytes], PageAnswer]


@attrs.frozen(slots=True, eq=False)
class PageServer:
    """HTTP server on a bound port. `page` makes each response."""

    listener: MultiListener[SocketStream]
    page: Page
    _room: anyio.Semaphore = attrs.field(factory=lambda: anyio.Semaphore(_MAX_CONNECTIONS))

    @property
    def port(self) -> int:
        return int(self.listener.extra(SocketAttribute.local_port))  # noqa: S610 - no Django here

    async def serve(self) -> NoReturn:
        """Answer requests until cancelled. Pause when no connection can be accepted: the process may have no file
        descriptor left."""
        while True:
            try:
                async with anyio.create_task_group() as requests:
                    await self.listener.serve(self._handle_connection, requests)
            except* (OSError, anyio.BrokenResourceError) as errors:  # anyio on trio raises the second, from the first
                log.warning("connection not accepted", port=self.port, reason=_first_reason(errors))
            await anyio.sleep(_ACCEPT_RETRY_S)

    async def _handle_connection(self, stream: SocketStream) -> None:
        """Answer one request. Close the connection at once when there are too many."""
        try:
            async with stream:
                self._room.acquire_nowait()
                try:
                    with anyio.move_on_after(_REQUEST_TIMEOUT_S):
                        await _answer(stream, self.page)
                finally:
                    self._room.release()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.WouldBlock, OSError):
            return
        except Exception:
            log.exception("metrics request failed", port=self.port)


@asynccontextmanager
async def open_pages(host: str, port: int, page: Page, settings: str) -> AsyncIterator[PageServer]:
    """Bind the port. Fatal, naming `settings`, when it is taken."""
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as error:
        raise Fatal(f"{settings}: {host}:{port}: {error.strerror or error}; choose another") from None
    async with listener:
        server = PageServer(listener, page)
        log.info("metrics served", host=host, port=server.port)
        yield server


def _first_reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error.__cause__ or error)


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
