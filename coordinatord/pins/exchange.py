"""Small requests to the store, whole ones for whole answers.

aiohttp and not httpx: a batch stores a container for every line, and httpx takes 2 ms of the event loop for each, seven
times as much.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
from yarl import URL

from coordinatord.connections import answering, open_connections, read_answer

SMALL: Final = 1 << 16  # larger content is sent in pieces, which httpx takes without a copy
_NOT_OURS: Final = ("user-agent", "accept", "content-type")
_LONGEST_ANSWER: Final = 32 << 20  # a container that a request carried has up to 15 MiB; large objects are streamed


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
    async with open_connections(
        connections, connecting=patience / 3, patience=patience, skip_auto_headers=_NOT_OURS
    ) as session:

        async def exchange(method: str, url: str, headers: Mapping[str, str], content: bytes) -> Answered:
            with answering(within=3 * patience):
                async with session.request(
                    method, URL(url, encoded=True), headers=headers, data=content or None, allow_redirects=False
                ) as answer:
                    return Answered(answer.status, answer.headers, await read_answer(answer, _LONGEST_ANSWER))

        yield exchange
