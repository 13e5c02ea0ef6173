"""Read answers without decoding, up to a limit of bytes."""

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import attrs
import httpx

from common.plain_answers import IDENTITY, require_plain
from common.refusal import Refused

MAX_ANSWER_BYTES: Final = 16 << 20  # the coordinator cuts its pages at 4 MiB
MAX_CONTENT_BYTES: Final = 1 << 30  # of a file or a result; no coordinator accepts larger ones
_MAX_REDIRECTS: Final = 5
_PIECE_BYTES: Final = 65_536  # the size that sealing is fastest with


class UnfitAnswer(httpx.DecodingError):
    """Answer that is encoded or too long."""


class InvalidAddress(httpx.RequestError):
    """Name or id that would make an invalid URL."""


class ForeignRedirect(httpx.RequestError):
    """Redirect to another host without TLS, which is not followed."""


# Errors of lower layers that httpx does not convert: a damaged TLS record, a host name that cannot be encoded, a port
# out of range (in a group, after attempts at several addresses).
_FOREIGN_ERRORS: Final = (
    OSError,
    ValueError,
    OverflowError,
    ExceptionGroup,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    httpx.StreamError,
)


@contextmanager
def request_errors() -> Iterator[None]:
    """Raise httpx.RequestError in place of every failure of a request. Only requests may run in the block."""
    try:
        yield
    except Refused:  # raised by the iterator of the request's content
        raise
    except httpx.InvalidURL as error:
        raise InvalidAddress(str(error)) from error
    except _FOREIGN_ERRORS as error:
        raise httpx.NetworkError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str | httpx.URL, *, headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[httpx.Response]:
    """Send a request, and yield the answer with its body unread. Read the body with `whole` or `pieces_of`. Redirects
    are not followed. Raises httpx.RequestError."""
    with request_errors():
        request = http.build_request(method, url, headers={**(headers or {}), **IDENTITY}, **more)
        response = await http.send(request, stream=True, follow_redirects=False)
    try:
        yield response
    finally:
        await _close(response)


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """Send a GET, follow its redirects and yield the last answer with its body unread. Bodies on the way are not read.

    A redirect may lead only to the same host or to an https address, so that a gateway cannot redirect to plain HTTP
    services in the local network."""
    with request_errors():
        request = http.build_request("GET", url, headers=dict(IDENTITY))
    for _ in range(_MAX_REDIRECTS):
        with request_errors():
            response = await http.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            following = response.next_request
        finally:
            await _close(response)
        if following.url.scheme != "https" and following.url.host != request.url.host:
            where = f"{following.url.scheme}://{following.url.host}"
            raise ForeignRedirect(f"a redirect to {where}: another host must speak https", request=request)
        request = following
    raise httpx.TooManyRedirects(f"more than {_MAX_REDIRECTS} redirects", request=request)


async def whole(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> httpx.Response:
    """Return the same answer with its body read. Raises UnfitAnswer, or another httpx.RequestError."""
    content = await body_of(response, max_bytes)
    return httpx.Response(response.status_code, headers=response.headers, content=content, request=response.request)


async def body_of(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body. Raises UnfitAnswer, or another httpx.RequestError."""
    body = bytearray()
    async with pieces_of(response, max_bytes, None) as pieces:
        async for piece in pieces:
            body += piece
    return bytes(body)


@asynccontextmanager
async def pieces_of(
    response: httpx.Response, max_bytes: float = MAX_CONTENT_BYTES, size: int | None = _PIECE_BYTES
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the body in pieces of `size` bytes, or as they arrive. The block may end before the body does.

    The pieces raise UnfitAnswer, or another httpx.RequestError."""
    require_unencoded(response)
    async with raw_pieces(response, size, max_bytes) as pieces:
        yield pieces


@asynccontextmanager
async def raw_pieces(
    response: httpx.Response, size: int | None = None, max_bytes: float = math.inf
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the body as `pieces_of` does, encoded or not."""
    pieces = _Pieces(response, response.aiter_raw(size), max_bytes)
    try:
        yield pieces
    finally:
        await pieces.leave()


def require_unencoded(response: httpx.Response) -> None:
    """Raise UnfitAnswer for an encoded body."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise UnfitAnswer(encoded.message, request=response.request) from None


@attrs.define(eq=False)
class _Pieces:
    """Pieces of one body."""

    response: httpx.Response
    raw: AsyncIterator[bytes]
    max_bytes: float
    length: int = 0
    ended: bool = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with request_errors():
                piece = await anext(self.raw)
        except BaseException:
            self.ended = True
            raise
        self.length += len(piece)
        if self.length > self.max_bytes:
            message = f"the answer is longer than {self.max_bytes} bytes"
            raise UnfitAnswer(message, request=self.response.request)
        return piece

    async def leave(self) -> None:
        """End httpx's nested generators from the innermost outwards, by cancelling their next read. Closing the
        outermost one would leave the others to the garbage collector."""
        if self.ended:
            return
        with anyio.CancelScope() as leaving, suppress(httpx.RequestError):
            leaving.cancel()
            with request_errors():
                async for _ in self.raw:
                    pass


async def _close(response: httpx.Response) -> None:
    with request_errors():
        await response.aclose()
