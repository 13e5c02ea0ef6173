"""HTTP client, by aiohttp, whose parser is written in C: kept connections, limits of time and length, streamed bodies.

    async with open_http(connections=4, patience=30) as http:
        async with http("GET", url, headers) as response:
            body = await response.read(longest=1 << 20)

A request ends with a response or with NoAnswer.
"""

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache
from typing import Any, Final, Protocol
from urllib.request import getproxies

import aiohttp
import anyio
import attrs
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused

_KEPT_SECONDS: Final = 4.0  # common servers close an idle connection after five or more: be first, or a request is lost
_JOINED_BYTES: Final = 1 << 16  # a smaller body leaves in one write with its head; a larger one is sent without a copy
# ValueError: a host name that cannot be encoded, a port out of range. OSError: TimeoutError and ssl.SSLError, too.
_FAILURES: Final = (aiohttp.ClientError, OSError, ValueError)
_NOT_OURS: Final = ("user-agent", "accept", "content-type")


@cache
def trusted() -> ssl.SSLContext:
    """The system's certificates, read when something is first asked for by https."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(("http/1.1",))
    return context


class NoResponse(Exception):
    """No answer, or only a part of one; whether the server acted on the request is not known."""


class UnfitResponse(NoResponse):
    """An answer that was encoded or longer than its limit, and was not read."""


@attrs.frozen(slots=True)
class HttpResponse:
    """Head of an answer. The body is unread: take `pieces`, as they come, or `read` it whole. Both raise NoAnswer."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]

    def require_plain(self) -> None:
        """Raises UnfitAnswer for an encoded body: its length says nothing of the content's."""
        try:
            require_plain(self.headers)
        except Refused as error:
            raise UnfitResponse(error.message) from None

    async def read(self, longest: int) -> bytes:
        """Whole body, up to `longest` bytes."""
        self.require_plain()
        pieces: list[bytes] = []
        length = 0
        async for piece in self.pieces:
            length += len(piece)
            try:
                require_short(length, longest)
            except Refused as error:
                raise UnfitResponse(error.message) from None
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Http(Protocol):
    """Sends one request; the response is closed when its block ends. `url` is quoted already. Redirections are not
    followed. Content of unknown length is sent in chunks, once."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
    ) -> AbstractAsyncContextManager[HttpResponse]: ...


@asynccontextmanager
async def open_http(
    *,
    connections: int,
    patience: float,
    connecting: float | None = None,
    tls: ssl.SSLContext | None = None,
    proxies: bool = True,
    connector: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Http]:
    """`patience`: seconds for each piece of the content to leave, and between any two reads of the answer;
    `connecting`: seconds to get a connection, `patience` unless given; `tls`: what https is verified by, `trusted()`
    unless given; `proxies`: use those that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name; `settings`: more of aiohttp's,
    and those of its connector in `connector`."""
    limits = aiohttp.ClientTimeout(total=None, connect=connecting or patience, sock_read=patience)
    # Even without a proxy in the environment, aiohttp would look for one, and read ~/.netrc, at every request.
    trust_env = proxies and bool(getproxies())
    async with _session(connections, limits, connector or {}, {**settings, "trust_env": trust_env}) as session:

        @asynccontextmanager
        async def http(
            method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
        ) -> AsyncIterator[HttpResponse]:
            with _answering(within=3 * patience) as until_answered:
                data: bytes | _Content | None
                if isinstance(content, AsyncIterable):
                    data = _Content(content, until_answered, patience)
                elif sum(len(piece) for piece in content) <= _JOINED_BYTES:
                    data = b"".join(content) or None
                else:
                    data = _Content(content, until_answered, patience)
                target = URL(url, encoded=True)
                verified = (tls or trusted()) if target.scheme == "https" else True
                opened = await session.request(
                    method, target, headers=headers, data=data, allow_redirects=False, ssl=verified
                )
            async with opened:
                yield HttpResponse(opened.status, opened.headers, _read_pieces(opened))

        yield http


class _Content(aiohttp.Payload):
    """Pieces of a request's body. aiohttp may send them a second time, when a kept connection turns out to be closed:
    they start from the first then. (It does so with no POST, and pieces that come but once are those of a POST.) The
    deadline moves with each piece."""

    def __init__(
        self, pieces: Sequence[bytes] | AsyncIterable[bytes], deadline: anyio.CancelScope, patience: float
    ) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._deadline = deadline
        self._patience = patience

    @property
    def size(self) -> int | None:
        """Return the length of the content, or None where it is sent in chunks."""
        return None if isinstance(self._pieces, AsyncIterable) else sum(map(len, self._pieces))

    async def write(self, writer: AbstractStreamWriter) -> None:
        async for piece in _one_by_one(self._pieces):
            self._deadline.deadline = anyio.current_time() + self._patience
            await writer.write(piece)
        self._deadline.deadline = anyio.current_time() + 3 * self._patience

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("content of any size is not text")


async def _one_by_one(pieces: Sequence[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


@asynccontextmanager
async def _session(
    connections: int, limits: aiohttp.ClientTimeout, connector: Mapping[str, Any], settings: Mapping[str, Any]
) -> AsyncIterator[aiohttp.ClientSession]:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEPT_SECONDS, **connector),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=limits,
        auto_decompress=False,
        headers=IDENTITY,
        skip_auto_headers=_NOT_OURS,
        **settings,
    )
    try:
        yield session
    finally:
        with anyio.CancelScope(shield=True):  # short: it waits for nobody but the event loop
            await session.close()


async def _read_pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Body of an answer as it comes. Raises NoAnswer when it breaks off.

    The end is asked for, not read: all empty bodies share one stream in aiohttp, whose iter_chunks() ends once only.
    """
    try:
        while not answer.content.at_eof():
            piece, _ = await answer.content.readchunk()
            if piece:
                yield piece
    except _FAILURES as error:
        raise NoResponse(type(error).__name__) from error


@contextmanager
def _answering(within: float) -> Iterator[anyio.CancelScope]:
    """Deadline of one request. aiohttp times the connection and the reads, but would send for ever to a server that
    takes nothing: hence a time for all of it, which may be lifted when the answer begins."""
    try:
        with anyio.fail_after(within) as scope:
            yield scope
    except _FAILURES as error:
        raise NoResponse(type(error).__name__) from error
