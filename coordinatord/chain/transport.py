"""One POST to a JSON-RPC endpoint and the answer's bytes, on a few kept connections.

aiohttp and not httpx: a backfill reads a page of logs of megabytes per range, and aiohttp's parser, written in C, takes
a third of the time for it.
"""

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from coordinatord.connections import answering, open_connections, read_answer

# A request's body to the HTTP status and the answer's body. Raises NoAnswer, and nothing else.
Transport = Callable[[bytes], Awaitable[tuple[int, bytes]]]

_READ_AHEAD: Final = 1 << 20  # bytes; a page of logs is larger than the default by far, and would be read haltingly
_HEADERS: Final = {"content-type": "application/json"}
_LONGEST_ANSWER: Final = (
    128 << 20
)  # a page of logs is megabytes, and the indexer asks for some thousand events at a time


@asynccontextmanager
async def open_transport(url: str, *, connections: int, patience: float) -> AsyncIterator[Transport]:
    """`patience`: seconds to get a connection, to send a request, and between any two reads of an answer."""
    async with open_connections(
        connections, connecting=patience, patience=patience, headers=_HEADERS, read_bufsize=_READ_AHEAD
    ) as session:

        async def post(body: bytes) -> tuple[int, bytes]:
            with answering(within=3 * patience) as until_answered:
                async with session.post(url, data=io.BytesIO(body), allow_redirects=False) as response:
                    until_answered.deadline = float("inf")
                    return response.status, await read_answer(response, _LONGEST_ANSWER)

        yield post
