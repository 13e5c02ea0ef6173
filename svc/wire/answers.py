"""Reading answers: as they were sent, and never more of them than they may have."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused

LONGEST_ANSWER: Final = 16 << 20  # of the coordinator: its pages are cut at 4 MiB
LONGEST_CONTENT: Final = 1 << 30  # of a file or a result: no coordinator takes larger ones
_MOST_REDIRECTS: Final = 5


class UnfitAnswer(httpx.DecodingError):
    """An answer that is encoded, or longer than it may be."""


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str, *, headers: Mapping[str, str] | None = None, **request: Any
) -> AsyncIterator[httpx.Response]:
    """An answer with its body unread; `whole` and `pieces_of` read it. A redirect is an answer like any other."""
    asked = {**(headers or {}), **IDENTITY}
    async with http.stream(method, url, headers=asked, follow_redirects=False, **request) as response:
        yield response


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """What a GET leads to: on the same host, or at an https address, so that an open door of a gateway is no way into
    the network that this runs in. httpx would read, and unfold, the bodies of the redirects on the way."""
    request = http.build_request("GET", url, headers=dict(IDENTITY))
    for _ in range(_MOST_REDIRECTS):
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
    raw = response.aiter_raw(65_536)
    pieces = _up_to(longest, raw, response)
    try:
        yield pieces
    finally:
        await pieces.aclose()  # type: ignore[attr-defined] # a generator
        await raw.aclose()  # type: ignore[attr-defined] # what httpx makes is one, too


async def _up_to(longest: int, raw: AsyncIterator[bytes], response: httpx.Response) -> AsyncIterator[bytes]:
    length = 0
    async for piece in raw:
        length += len(piece)
        try:
            require_short(length, longest)
        except Refused as long:
            raise UnfitAnswer(long.message, request=response.request) from None
        yield piece
