"""Read-ahead streams, and task groups that raise a single error."""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

T = TypeVar("T")


@asynccontextmanager
async def single_error_task_group() -> AsyncIterator[TaskGroup]:
    """Open a task group that raises a single error as itself, not in an exception group, so that callers can catch the
    error by its type."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        raise leaf from leaf.__cause__


@asynccontextmanager
async def read_ahead(source: AsyncIterable[T], buffer_size: int = 0) -> AsyncIterator[AsyncIterator[T]]:
    """Read `source` ahead in a separate task. An error of the source is raised from the block.

        async with read_ahead(source) as pieces:
            async for piece in pieces: ...

    The source produces the next piece while the block handles the previous piece. At most
    `buffer_size` + 1 finished pieces wait, which bounds memory.
    """
    send, receive = anyio.create_memory_object_stream[T](buffer_size)
    async with send, receive, single_error_task_group() as tasks:
        tasks.start_soon(_forward_pieces, source, send)
        yield receive
        # The caller may leave the `async with` block before the source ends.
        tasks.cancel_scope.cancel()


async def _forward_pieces(source: AsyncIterable[T], send: MemoryObjectSendStream[T]) -> None:
    async for piece in source:
        await send.send(piece)
    await send.aclose()  # not after an error, because the block would take the pieces for the whole source
