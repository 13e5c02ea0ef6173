"""Ranges of blocks fetched ahead and handed over in order: while one is written, the next are on their way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from coordinatord.trouble import Retryable

AHEAD: Final = 2

T = TypeVar("T")
Fetch = Callable[[int, int], Awaitable[T]]


@attrs.define
class _Pending(Generic[T]):
    done: anyio.Event = attrs.field(factory=anyio.Event)
    outcome: T | Retryable | None = None


@asynccontextmanager
async def prefetched(
    fetch: Fetch[T], first: int, last: int, width: Callable[[], int]
) -> AsyncIterator[Callable[[], Awaitable[T | None]]]:
    """Yields a function that gives the next range, and None behind `last`; it raises what fetching raised.

    `width` is asked before each range, how many blocks it may have.
    """
    # The one being written and AHEAD more: the stream holds all of them but the one that its sender waits with.
    send, receive = anyio.create_memory_object_stream[_Pending[T]](AHEAD - 1)

    async def following() -> T | None:
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


async def _plan(
    send: MemoryObjectSendStream[_Pending[T]], fetch: Fetch[T], first: int, last: int, width: Callable[[], int]
) -> None:
    async with send, anyio.create_task_group() as fetches:
        while first <= last:
            upto = min(last, first + width() - 1)
            pending = _Pending[T]()
            fetches.start_soon(_fetch, pending, fetch, first, upto)
            await send.send(pending)
            first = upto + 1


async def _fetch(pending: _Pending[T], fetch: Fetch[T], first: int, upto: int) -> None:
    # Trouble is handed over as a value, so that it surfaces in its turn and alone, not as a group.
    try:
        pending.outcome = await fetch(first, upto)
    except Retryable as trouble:
        pending.outcome = trouble
    pending.done.set()
