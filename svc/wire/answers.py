"""Send HTTP requests and read their answers, up to a limit of bytes. Nothing is decompressed."""

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import attrs
import httpx

from common.refusal import Refused
from common.response_checks import IDENTITY_HEADERS, check_response_encoding

MAX_ANSWER_BYTES: Final = 16 << 20  # the coordinator's pages end at 4 MiB
MAX_CONTENT_BYTES: Final = 1 << 30  # largest file or result that a coordinator accepts
_MAX_REDIRECTS: Final = 5
_PIECE_BYTES: Final = 65_536  # sealing is fastest with pieces of this size


class UnacceptableAnswer(httpx.DecodingError):
    """The answer is compressed or too long."""


class InvalidRequestUrl(httpx.RequestError):
    """A name or id in the request would make the URL invalid."""


class ForeignRedirect(httpx.RequestError):
    """The answer redirects to another host over plain HTTP. The client does not follow such a redirect."""


# Errors that httpx does not convert, for example for a damaged TLS record, an invalid host name or a port out of range.
# After attempts at several addresses, the errors are in an ExceptionGroup.
_UNCONVERTED_ERRORS: Final = (
    OSError,
    ValueError,
    OverflowError,
    ExceptionGroup,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    httpx.StreamError,
)


@contextmanager
def convert_request_errors() -> Iterator[None]:
    """Convert every failure of a request to httpx.RequestError.

    Run only the request in the block, because errors of other code would be converted too.
    """
    try:
        yield
    except Refused:  # raised by the iterator of the request's content
        raise
    except httpx.InvalidURL as error:
        raise InvalidRequestUrl(str(error)) from error
    except _UNCONVERTED_ERRORS as error:
        raise httpx.NetworkError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_response(
    http: httpx.AsyncClient,
    method: str,
    url: str | httpx.URL,
    *,
    headers: Mapping[str, str] | None = None,
    **request_options: Any,
) -> AsyncIterator[httpx.Response]:
    """Send a request, and yield the answer before its body is read. Redirects are not followed.

    Read the body with `read_response` or `unencoded_pieces`. Raises httpx.RequestError.
    """
    with convert_request_errors():
        request = http.build_request(method, url, headers={**(headers or {}), **IDENTITY_HEADERS}, **request_options)
        response = await http.send(request, stream=True, follow_redirects=False)
    try:
        yield response
    finally:
        await _close_response(response)


@asynccontextmanager
async def follow_redirects(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """Send a GET, follow its redirects, and yield the last answer before its body is read.

    A redirect may lead only to the same host or to an https address. Otherwise, a gateway could redirect to plain HTTP
    services in the local network.
    """
    with convert_request_errors():
        request = http.build_request("GET", url, headers=dict(IDENTITY_HEADERS))
    for _ in range(_MAX_REDIRECTS):
        with convert_request_errors():
            response = await http.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            following = response.next_request
        finally:
            await _close_response(response)
        if following.url.scheme != "https" and following.url.host != request.url.host:
            target = f"{following.url.scheme}://{following.url.host}"
            raise ForeignRedirect(
                f"the redirect to {target} was not followed: another host must use https", request=request
            )
        request = following
    raise httpx.TooManyRedirects(f"more than {_MAX_REDIRECTS} redirects", request=request)


async def read_response(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> httpx.Response:
    """Read the body, and return a copy of the response that contains it.

    Raises UnacceptableAnswer, or another httpx.RequestError.
    """
    content = await read_body(response, max_bytes)
    return httpx.Response(response.status_code, headers=response.headers, content=content, request=response.request)


async def read_body(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body. Raises UnacceptableAnswer, or another httpx.RequestError."""
    body = bytearray()
    async with unencoded_pieces(response, max_bytes, None) as pieces:
        async for piece in pieces:
            body += piece
    return bytes(body)


@asynccontextmanager
async def unencoded_pieces(
    response: httpx.Response, max_bytes: float = MAX_CONTENT_BYTES, size: int | None = _PIECE_BYTES
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the pieces of an uncompressed body: `size` bytes each, or as they arrive if `size` is None.

    The caller may stop before the body ends. Raises httpx.RequestError, also while reading.
    """
    require_unencoded(response)
    async with raw_pieces(response, size, max_bytes) as pieces:
        yield pieces


@asynccontextmanager
async def raw_pieces(
    response: httpx.Response, size: int | None = None, max_bytes: float = math.inf
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the pieces of the body like `unencoded_pieces`, but without rejecting a compressed body."""
    pieces = _PieceIterator(response, response.aiter_raw(size), max_bytes)
    try:
        yield pieces
    finally:
        await pieces.close()


def require_unencoded(response: httpx.Response) -> None:
    """Raise UnacceptableAnswer for a compressed body."""
    try:
        check_response_encoding(response.headers)
    except Refused as encoded:
        raise UnacceptableAnswer(encoded.message, request=response.request) from None


@attrs.define(eq=False)
class _PieceIterator:
    """Iterator over the pieces of one body. Raises UnacceptableAnswer if the body is too long."""

    response: httpx.Response
    raw: AsyncIterator[bytes]
    max_bytes: float
    length: int = 0
    ended: bool = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with convert_request_errors():
                piece = await anext(self.raw)
        except BaseException:
            self.ended = True
            raise
        self.length += len(piece)
        if self.length > self.max_bytes:
            message = f"the answer is longer than {self.max_bytes} bytes"
            raise UnacceptableAnswer(message, request=self.response.request)
        return piece

    async def close(self) -> None:
        """Close httpx's nested generators by cancelling their next read.

        `aclose` would close only the outermost generator, and leave the others to the garbage collector.
        """
        if self.ended:
            return
        with anyio.CancelScope() as scope, suppress(httpx.RequestError):
            scope.cancel()
            with convert_request_errors():
                async for _ in self.raw:
                    pass


async def _close_response(response: httpx.Response) -> None:
    with convert_request_errors():
        await response.aclose()
