"""One POST to a JSON-RPC endpoint and the answer's bytes, on a few kept connections.

aiohttp and not httpx: a backfill reads a page of logs of megabytes per range, and aiohttp's parser, written in C, takes
a third of the time for it.
"""

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import anyio

# A request's body to the HTTP status and the answer's body. Raises NoAnswer, and nothing else.
Transport = Callable[[bytes], Awaitable[tuple[int, bytes]]]

_KEPT_SECONDS: Final = 4.0  # common servers close an idle connection after five or more: be first, or a request is lost
_READ_AHEAD: Final = 1 << 20  # bytes; a page of logs is larger than the default by far, and would be read haltingly
_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class NoAnswer(Exception):
    """The endpoint gave none, or not a whole one; whether it acted on the request is not known."""


@asynccontextmanager
async def open_transport(url: str, *, connections: int, patience: float) -> AsyncIterator[Transport]:
    """`patience`: seconds to get a connection, to send a request, and between any two reads of an answer."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEPT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=patience, sock_read=patience),
        auto_decompress=False,
        headers=_HEADERS,
        read_bufsize=_READ_AHEAD,
    )

    async def post(body: bytes) -> tuple[int, bytes]:
        try:
            # aiohttp times the connection and the reads, but would send for ever to a node that takes nothing.
            with anyio.fail_after(3 * patience) as until_answered:
                async with session.post(url, data=io.BytesIO(body), allow_redirects=False) as response:
                    until_answered.deadline = float("inf")
                    # read() would join all pieces twice, and a page of logs is megabytes
                    pieces = [piece async for piece, _ in response.content.iter_chunks()]
                    return response.status, b"".join(pieces)
        except (aiohttp.ClientError, TimeoutError) as trouble:
            raise NoAnswer(type(trouble).__name__) from trouble

    try:
        yield post
    finally:
        with anyio.CancelScope(shield=True):  # short: it waits for nobody but the event loop
            await session.close()
