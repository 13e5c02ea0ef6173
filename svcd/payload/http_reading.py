"""Read an HTTP answer piece by piece as it was sent, and stop early without leaving anything to the garbage collector.

httpx nests asynchronous generators that it does not close. Leaving its iteration by `break` or an exception abandons
them, and trio complains when they are collected. Cancelling the read ends them from the innermost outwards.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import trio

from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused

_LAST_WORDS_SECONDS: Final = 1.0
_MOST_REDIRECTS: Final = 5


class EncodedAnswer(httpx.DecodingError):
    """An answer in an encoding that nobody asked for. What it unfolds to may be of any size: it is not read."""


class ForeignRedirect(httpx.RequestError):
    """A redirect that is not followed."""


class LongAnswer(Exception):
    """An answer of more bytes than it may have."""


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str | httpx.URL, **request: Any
) -> AsyncIterator[httpx.Response]:
    """An answer with its body unread."""
    headers: Mapping[str, str] = request.pop("headers", None) or {}
    async with http.stream(method, url, headers={**headers, **IDENTITY}, **request) as response:
        yield response


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """What a GET leads to. httpx would read, and unfold, the bodies of the redirects on the way.

    A redirect may lead to the same host, or to another by https: a gateway is no way into the network of this machine,
    whose services are asked in the clear.
    """
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
        if following.url.host != request.url.host and following.url.scheme != "https":
            where = f"{following.url.scheme}://{following.url.host}"
            raise ForeignRedirect(f"a redirect to {where}: another host must speak https", request=request)
        request = following
    raise httpx.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)


def require_unencoded(response: httpx.Response) -> None:
    """Before anything of it is read. Raises EncodedAnswer."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise EncodedAnswer(encoded.message, request=response.request) from None


async def read_whole(response: httpx.Response, longest: int) -> bytes:
    """Raises LongAnswer, and what `read_pieces` raises."""
    body = bytearray()

    def take(piece: bytes) -> bool:
        try:
            require_short(len(body) + len(piece), longest)
        except Refused as long:
            raise LongAnswer(long.message) from None
        body.extend(piece)
        return False

    await read_pieces(response, take)
    return bytes(body)


async def read_pieces(response: httpx.Response, take: Callable[[bytes], bool]) -> None:
    """Until the answer ends or `take` has enough of it (returns True). What `take` raises is raised.

    An answer that is enough is given a second to end, so that its connection can be used again. Raises EncodedAnswer
    before anything is read.
    """

    async def taking(piece: bytes) -> bool:
        return take(piece)

    await hand_pieces(response, taking)


async def hand_pieces(response: httpx.Response, take: Callable[[bytes], Awaitable[bool]]) -> None:
    """As `read_pieces` does, to a `take` that takes its time."""
    require_unencoded(response)
    error: Exception | None = None
    with trio.CancelScope() as reading:
        async for piece in response.aiter_raw():
            if error is not None:
                continue  # the cancellation arrives with the next piece that has to be waited for
            try:
                if await take(piece):
                    reading.deadline = min(reading.deadline, trio.current_time() + _LAST_WORDS_SECONDS)
            except Exception as raised:  # kept for below, whatever it is
                error = raised
                reading.cancel()
    if error is not None:
        raise error
