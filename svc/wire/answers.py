"""Read answers as they were sent, up to a limit of bytes."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import httpx

from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused
from svc.errors import OrderRefused

LONGEST_ANSWER: Final = 16 << 20  # of the coordinator: its pages are cut at 4 MiB
LONGEST_CONTENT: Final = 1 << 30  # of a file or a result: no coordinator takes larger ones
_MOST_REDIRECTS: Final = 5


class UnfitAnswer(httpx.DecodingError):
    """An answer that is encoded, or longer than it may be."""


# What httpx lets through from the layers below it: a damaged record of TLS, a name that cannot be encoded, a port out
# of range (in a group, from attempts at several addresses).
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
    except Refused:  # by what makes the request's content
        raise
    except httpx.InvalidURL as error:
        raise httpx.RequestError(str(error)) from error
    except _FOREIGN_ERRORS as error:
        raise httpx.NetworkError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str, *, headers: Mapping[str, str] | None = None, **request: Any
) -> AsyncIterator[httpx.Response]:
    """Send a request, and yield the answer with its body unread: read it with `whole` or `pieces_of`. Redirects are not
    followed. Raise OrderRefused when a name or an id makes the URL invalid, else httpx.RequestError."""
    asked = {**(headers or {}), **IDENTITY}
    async with AsyncExitStack() as stack:
        with request_errors():
            try:
                answering = http.stream(method, url, headers=asked, follow_redirects=False, **request)
                response = await stack.enter_async_context(answering)
            except httpx.InvalidURL as invalid:
                raise OrderRefused(f"{url!r} cannot be requested: {invalid}", code="invalid_value") from None
        yield response


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """What a GET leads to: on the same host, or at an https address, so that an open door of a gateway is no way into
    the network that this runs in. httpx would read, and unfold, the bodies of the redirects on the way."""
    with request_errors():
        request = http.build_request("GET", url, headers=dict(IDENTITY))
    for _ in range(_MOST_REDIRECTS):
        with request_errors():
            response = await http.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            following = response.next_request
        finally:
            await response.aclose()
        if following.url.scheme != "https" and following.url.host != request.url.host:
            where = f"{following.url.scheme}://{following.url.host}"
            raise httpx.RequestError(f"a redirect to {where}: another host must speak https", request=request)
        request = following
    raise httpx.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)


async def whole(response: httpx.Response, longest: int = LONGEST_ANSWER) -> httpx.Response:
    """The same answer with its body read. Raises UnfitAnswer, with the rest of the body unread."""
    body = bytearray()
    async with pieces_of(response, longest) as pieces:
        async for piece in pieces:
            body += piece
    return httpx.Response(response.status_code, headers=response.headers, content=bytes(body), request=response.request)


@asynccontextmanager
async def pieces_of(response: httpx.Response, longest: int = LONGEST_CONTENT) -> AsyncIterator[AsyncIterator[bytes]]:
    """A streamed body in pieces of the size that sealing is fastest with; closed on the way out, read whole or not.
    Raises UnfitAnswer."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise UnfitAnswer(encoded.message, request=response.request) from None
    raw = raw_pieces(response, 65_536)
    pieces = _up_to(longest, raw, response)
    try:
        yield pieces
    finally:
        await pieces.aclose()  # type: ignore[attr-defined] # a generator
        await raw.aclose()


async def raw_pieces(response: httpx.Response, size: int | None = None) -> AsyncGenerator[bytes, None]:
    """Yield a body as it was sent, in pieces of `size` or as they come. Raises httpx.RequestError."""
    raw = response.aiter_raw(size)
    try:
        with request_errors():
            async for piece in raw:
                yield piece
    finally:
        await raw.aclose()  # type: ignore[attr-defined] # a generator


async def _up_to(longest: int, raw: AsyncIterator[bytes], response: httpx.Response) -> AsyncIterator[bytes]:
    length = 0
    async for piece in raw:
        length += len(piece)
        try:
            require_short(length, longest)
        except Refused as long:
            raise UnfitAnswer(long.message, request=response.request) from None
        yield piece
