"""Kept connections to a server that is asked often, by aiohttp, whose parser is written in C: how long they are kept,
how long an answer may take and be, and how they are closed. What becomes of a question is an answer or `NoAnswer`."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import aiohttp
import anyio

from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused

_KEPT_SECONDS: Final = 4.0  # common servers close an idle connection after five or more: be first, or a request is lost


class NoAnswer(Exception):
    """There was none, or not a whole one; whether the server acted on the request is not known."""


class UnfitAnswer(NoAnswer):
    """It was encoded, or longer than it may be, and was not read."""


@asynccontextmanager
async def open_connections(
    most: int, *, connecting: float, patience: float, headers: Mapping[str, str] | None = None, **reading: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    """Seconds to get a connection, and between any two reads of an answer. `headers`: of every request. `reading`: more
    of aiohttp's settings."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=_KEPT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=connecting, sock_read=patience),
        auto_decompress=False,
        headers={**(headers or {}), **IDENTITY},
        **reading,
    )
    try:
        yield session
    finally:
        with anyio.CancelScope(shield=True):  # short: it waits for nobody but the event loop
            await session.close()


async def read_answer(answer: aiohttp.ClientResponse, longest: int) -> bytes:
    """All of its body. read() would join the pieces twice, and a page of logs is megabytes.

    The end is asked for, not read: all empty bodies share one stream in aiohttp, whose iter_chunks() ends once only.
    """
    try:
        require_plain(answer.headers)
        pieces: list[bytes] = []
        length = 0
        while not answer.content.at_eof():
            piece, _ = await answer.content.readchunk()
            length += len(piece)
            require_short(length, longest)
            pieces.append(piece)
    except Refused as unfit:
        raise UnfitAnswer(unfit.message) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def answering(within: float) -> Iterator[anyio.CancelScope]:
    """Around one question. aiohttp times the connection and the reads, but would send for ever to a server that takes
    nothing: hence a time for all of it, which may be lifted when the answer begins."""
    try:
        with anyio.fail_after(within) as scope:
            yield scope
    except (aiohttp.ClientError, TimeoutError) as trouble:
        raise NoAnswer(type(trouble).__name__) from trouble
