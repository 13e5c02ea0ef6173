"""Small requests to the store, whole ones for whole answers.

aiohttp and not httpx: a batch stores a container for every line, and httpx takes 2 ms of the event loop for each, seven
times as much.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import anyio
import attrs
from yarl import URL

SMALL: Final = 1 << 16  # larger content is sent in pieces, which httpx takes without a copy
_KEPT_SECONDS: Final = 4.0  # common servers close an idle connection after five or more: be first, or a request is lost
_NOT_OURS: Final = ("user-agent", "accept", "accept-encoding", "content-type")


class NoAnswer(Exception):
    """The store gave none, or not a whole one; whether it acted on the request is not known."""


@attrs.frozen(slots=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    content: bytes


# Method, URL (quoted already), headers, content. Raises NoAnswer, and nothing else.
Exchange = Callable[[str, str, Mapping[str, str], bytes], Awaitable[Answered]]


@asynccontextmanager
async def open_exchange(*, connections: int, patience: float) -> AsyncIterator[Exchange]:
    """`patience`: seconds between any two bytes; connecting gets a third of it."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEPT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=patience / 3, sock_read=patience),
        auto_decompress=False,
        skip_auto_headers=_NOT_OURS,
    )

    async def exchange(method: str, url: str, headers: Mapping[str, str], content: bytes) -> Answered:
        try:
            # aiohttp times the connection and the reads, but would send for ever to a store that takes nothing.
            with anyio.fail_after(3 * patience):
                async with session.request(
                    method, URL(url, encoded=True), headers=headers, data=content or None, allow_redirects=False
                ) as answer:
                    return Answered(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError) as trouble:
            raise NoAnswer(type(trouble).__name__) from trouble

    try:
        yield exchange
    finally:
        with anyio.CancelScope(shield=True):  # short: it waits for nobody but the event loop
            await session.close()
