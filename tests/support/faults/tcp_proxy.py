"""A TCP proxy with faults on demand, for any service: a store, a gateway, a database.

    async with tcp_proxy("127.0.0.1", 8480) as proxy:      # proxy.port is the service's port for the code under test
        with proxy.trouble(Trouble.REFUSE):
            ...                                            # lasts as long as the block

Starting a fault cuts existing connections, so reused connections meet it too. A black hole is different: connections
stay open, but no bytes pass.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto
from typing import Final

import anyio
import anyio.abc
import attrs

_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 7\r\n"
    b"connection: close\r\n\r\ntrouble"
)
_RAW_CID: Final = re.compile(rb"bafkrei[a-z2-7]{52}")
_CUT_AFTER_BYTES: Final = 64  # of a response


class Trouble(Enum):
    """A fault of a connection."""

    REFUSE = auto()  # closed when opened
    HANG = auto()  # accepted, and never answered
    CUT = auto()  # closed after the first bytes of a response
    UNAVAILABLE = auto()  # every request is answered with HTTP 503
    WRONG_CID = auto()  # responses name another content id, of one raw block, which the uploader can detect


@attrs.define
class TcpProxy:
    host: str
    port: int
    _upstream: tuple[str, int]
    _trouble: Trouble | None = None
    _open: set[anyio.CancelScope] = attrs.field(factory=set)
    _passing: anyio.Event = attrs.field(factory=anyio.Event)

    def __attrs_post_init__(self) -> None:
        self._passing.set()

    @contextmanager
    def trouble(self, trouble: Trouble) -> Iterator[None]:
        self._trouble = trouble
        self.cut_all()
        try:
            yield
        finally:
            self._trouble = None
            self.cut_all()  # end hanging connections

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Pass no bytes, and keep connections open without any error. At the end, deliver the delayed bytes."""
        self._passing = anyio.Event()
        try:
            yield
        finally:
            self._passing.set()

    def cut_all(self) -> None:
        """Close every open connection."""
        for scope in list(self._open):
            scope.cancel()

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with client:
                    await self._serve(client)
            except* (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                pass  # one side disconnected, and both directions may notice
            finally:
                self._open.discard(scope)

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        match self._trouble:
            case Trouble.REFUSE:
                return
            case Trouble.HANG:
                await anyio.sleep_forever()
            case Trouble.UNAVAILABLE:
                await client.receive()
                await client.send(_UNAVAILABLE)
            case cut:
                async with await anyio.connect_tcp(*self._upstream) as upstream, anyio.create_task_group() as both:

                    async def answers() -> None:
                        await self._copy(
                            upstream, client, _CUT_AFTER_BYTES if cut is Trouble.CUT else None, answers=True
                        )
                        both.cancel_scope.cancel()

                    both.start_soon(answers)
                    await self._copy(client, upstream, None)
                    await upstream.send_eof()

    async def _copy(
        self,
        source: anyio.abc.SocketStream,
        target: anyio.abc.SocketStream,
        most: int | None,
        *,
        answers: bool = False,
    ) -> None:
        while most is None or most > 0:
            try:
                piece = await source.receive(65536 if most is None else most)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
            if most is not None:
                most -= len(piece)
            await self._passing.wait()
            if answers and self._trouble is Trouble.WRONG_CID:
                piece = with_other_cids(piece)
            await target.send(piece)


def with_other_cids(piece: bytes) -> bytes:
    """Replace content ids in the response's head. The body is unchanged."""
    head, end, content = piece.partition(b"\r\n\r\n")
    return _RAW_CID.sub(_another, head) + end + content if head.startswith(b"HTTP/") else piece


def _another(found: re.Match[bytes]) -> bytes:
    """Return another content id of the same length."""
    cid = bytearray(found[0])
    cid[20] = ord("b") if cid[20] == ord("a") else ord("a")
    return bytes(cid)


@asynccontextmanager
async def tcp_proxy(host: str, port: int) -> AsyncIterator[TcpProxy]:
    """Serve on a free loopback port until the block ends."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    own = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's, not Django's
    proxy = TcpProxy("127.0.0.1", own, (host, port))
    async with listener, anyio.create_task_group() as serving:
        serving.start_soon(listener.serve, proxy.serve)
        yield proxy
        serving.cancel_scope.cancel()
