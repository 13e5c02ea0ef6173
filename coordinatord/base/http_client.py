"""HTTP client on aiohttp, with persistent connections, limits on time and length, and streamed bodies.

    async with open_http(connections=4, timeout_s=30) as http:
        async with http("GET", url, headers) as response:
            body = await response.read(max_bytes=1 << 20)

A request yields a response or raises NoResponse.
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

from common.refusal import Refused
from common.response_checks import IDENTITY_HEADERS, check_response_encoding, check_response_length

# Most servers close idle connections after five seconds or more. The client closes first, so that no request is lost.
_KEEPALIVE_S: Final = 4.0
# A body up to this size is copied and sent in one write with the head of the request. A larger body is not copied.
_MAX_SINGLE_WRITE_BYTES: Final = 1 << 16
# aiohttp raises ValueError for an invalid host name or port. OSError includes TimeoutError and ssl.SSLError.
_REQUEST_ERRORS: Final = (aiohttp.ClientError, OSError, ValueError)
_OMITTED_DEFAULT_HEADERS: Final = ("user-agent", "accept", "content-type")


@cache
def system_tls_context() -> ssl.SSLContext:
    """Return a TLS context with the system's certificates, which are read on the first use of https."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(("http/1.1",))
    return context


class NoResponse(Exception):
    """No response, or only part of one. The effect of the request on the server is unknown."""


class RejectedResponse(NoResponse):
    """The response was rejected, because its body is encoded, too long, or has too many values."""


@attrs.frozen(slots=True)
class HttpResponse:
    """Head of a response. `pieces` streams the body, and `read` returns the whole body. Both raise NoResponse if the
    response breaks off or is rejected."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]

    def require_unencoded(self) -> None:
        """Raise RejectedResponse for an encoded body, because the encoded length does not limit the decoded length."""
        try:
            check_response_encoding(self.headers)
        except Refused as error:
            raise RejectedResponse(error.message) from None

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole body, up to `max_bytes` bytes."""
        self.require_unencoded()
        pieces: list[bytes] = []
        length = 0
        async for piece in self.pieces:
            length += len(piece)
            try:
                check_response_length(length, max_bytes)
            except Refused as error:
                raise RejectedResponse(error.message) from None
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class HttpClient(Protocol):
    """Function that sends one request and yields the response, which is closed at the end of the `async with` block.

    `url` must be percent-encoded. Redirects are not followed. Content of unknown length is sent in chunks and cannot be
    resent.
    """

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
    ) -> AbstractAsyncContextManager[HttpResponse]: ...


@asynccontextmanager
async def open_http(
    *,
    connections: int,
    timeout_s: float,
    connect_timeout_s: float | None = None,
    tls: ssl.SSLContext | None = None,
    proxies: bool = True,
    connector_options: Mapping[str, Any] | None = None,
    **session_options: Any,
) -> AsyncIterator[HttpClient]:
    """Open an HTTP client.

    `timeout_s` limits the sending of each piece of content and the time between two reads of the response.
    `connect_timeout_s` limits connecting (default: `timeout_s`). `tls` verifies https (default:
    `system_tls_context()`). With `proxies`, HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply. `session_options` are passed
    to aiohttp's session, and `connector_options` to its connector.
    """
    limits = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s or timeout_s, sock_read=timeout_s)
    # Without a proxy in the environment, aiohttp would still look for one and read ~/.netrc on every request. NO_PROXY
    # (`no`) names no proxy.
    trust_env = proxies and bool(getproxies().keys() - {"no"})
    async with _open_session(
        connections, limits, connector_options or {}, {**session_options, "trust_env": trust_env}
    ) as session:

        @asynccontextmanager
        async def http(
            method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
        ) -> AsyncIterator[HttpResponse]:
            with _limit_response_wait(3 * timeout_s) as response_deadline:
                data: bytes | _RequestBody | None
                if isinstance(content, AsyncIterable):
                    data = _RequestBody(content, response_deadline, timeout_s)
                elif sum(len(piece) for piece in content) <= _MAX_SINGLE_WRITE_BYTES:
                    data = b"".join(content) or None
                else:
                    data = _RequestBody(content, response_deadline, timeout_s)
                target = URL(url, encoded=True)
                verified = (tls or system_tls_context()) if target.scheme == "https" else True
                opened = await session.request(
                    method, target, headers=headers, data=data, allow_redirects=False, ssl=verified
                )
            async with opened:
                yield HttpResponse(opened.status, opened.headers, _read_pieces(opened))

        yield http


class _RequestBody(aiohttp.Payload):
    """Request body in pieces. Sending a piece extends the deadline of the request.

    aiohttp may send the body again, from its first piece, when a reused connection turns out to be closed. aiohttp
    never resends a POST, and only POST requests have pieces that cannot be resent.
    """

    def __init__(
        self, pieces: Sequence[bytes] | AsyncIterable[bytes], deadline: anyio.CancelScope, timeout_s: float
    ) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._deadline = deadline
        self._timeout_s = timeout_s

    @property
    def size(self) -> int | None:
        """Return the length of the content, or None if the content is sent in chunks."""
        return None if isinstance(self._pieces, AsyncIterable) else sum(map(len, self._pieces))

    async def write(self, writer: AbstractStreamWriter) -> None:
        async for piece in _iterate_pieces(self._pieces):
            self._deadline.deadline = anyio.current_time() + self._timeout_s
            await writer.write(piece)
        self._deadline.deadline = anyio.current_time() + 3 * self._timeout_s

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a request body is bytes and cannot be decoded as text")


async def _iterate_pieces(pieces: Sequence[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


@asynccontextmanager
async def _open_session(
    connections: int,
    limits: aiohttp.ClientTimeout,
    connector_options: Mapping[str, Any],
    session_options: Mapping[str, Any],
) -> AsyncIterator[aiohttp.ClientSession]:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEEPALIVE_S, **connector_options),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=limits,
        auto_decompress=False,
        headers=IDENTITY_HEADERS,
        skip_auto_headers=_OMITTED_DEFAULT_HEADERS,
        **session_options,
    )
    try:
        yield session
    finally:
        # The shield is safe: `close` waits only for the event loop, not for the network.
        with anyio.CancelScope(shield=True):
            await session.close()


async def _read_pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body of a response. Raise NoResponse when the response breaks off.

    The loop checks `at_eof()` and does not use iter_chunks(). In aiohttp, all empty bodies share one stream, and
    iter_chunks() ends only at its first use on a stream.
    """
    try:
        while not response.content.at_eof():
            piece, _ = await response.content.readchunk()
            if piece:
                yield piece
    except _REQUEST_ERRORS as error:
        raise NoResponse(type(error).__name__) from error


@contextmanager
def _limit_response_wait(timeout_s: float) -> Iterator[anyio.CancelScope]:
    """Raise NoResponse unless a response begins within `timeout_s`. Sending content in pieces extends the timeout.

    aiohttp limits only connecting and reading. It would wait forever to send to a server that reads nothing.
    """
    try:
        with anyio.fail_after(timeout_s) as scope:
            yield scope
    except _REQUEST_ERRORS as error:
        raise NoResponse(type(error).__name__) from error
