"""Ranges fetched ahead and handed over in order: while one is written, the next are on their way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from coordinatord.indexer.evidence import Stretch
from coordinatord.indexer.ranges import RangeWidth
from coordinatord.trouble import Retryable

AHEAD: Final = 2

Fetch = Callable[[int, int], Awaitable[Stretch]]


@attrs.define
class _Pending:
    done: anyio.Event = attrs.field(factory=anyio.Event)
    outcome: Stretch | Retryable | None = None


@asynccontextmanager
async def prefetched(
    fetch: Fetch, first: int, last: int, width: RangeWidth
) -> AsyncIterator[Callable[[], Awaitable[Stretch | None]]]:
    """Yields a function that gives the next stretch, and None behind `last`; it raises what fetching raised."""
    # The one being written and AHEAD more: the stream holds all of them but the one that its sender waits with.
    send, receive = anyio.create_memory_object_stream[_Pending](AHEAD - 1)

    async def following() -> Stretch | None:
        try:
            pending = await receive.receive()
        except anyio.EndOfStream:
            return None
        await pending.done.wait()
        if isinstance(pending.outcome, Retryable):
            raise pending.outcome
        return pending.outcome

    wrong: Exception | None = None
    with send, receive:
        async with anyio.create_task_group() as fetching:
            fetching.start_soon(_plan, send, fetch, first, last, width)
            try:
                yield following
            except Exception as raised:
                wrong = raised
            fetching.cancel_scope.cancel()
    if wrong is not None:
        raise wrong


async def _plan(send: MemoryObjectSendStream[_Pending], fetch: Fetch, first: int, last: int, width: RangeWidth) -> None:
    async with send, anyio.create_task_group() as fetches:
        while first <= last:
            upto = min(last, first + width.blocks - 1)
            pending = _Pending()
            fetches.start_soon(_fetch, pending, fetch, first, upto)
            await send.send(pending)
            first = upto + 1


async def _fetch(pending: _Pending, fetch: Fetch, first: int, upto: int) -> None:
    # Trouble is handed over as a value, so that it surfaces in its turn and alone, not as a group.
    try:
        pending.outcome = await fetch(first, upto)
    except Retryable as trouble:
        pending.outcome = trouble
    pending.done.set()
