"""Stages of a stream that run beside each other, joined by bounded channels.

    async with running_ahead(source) as pieces:
        async for piece in pieces: ...

While the block works on one piece, the next is being made. At most `slack` finished pieces wait between the two, so
that memory stays bounded whichever side is the slower one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from coordinatord.base.errors import Retryable

T = TypeVar("T")


@asynccontextmanager
async def unwrap_single_error() -> AsyncIterator[TaskGroup]:
    """A task group whose failure, when it is one alone, is raised as itself: callers match on what happened."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        raise leaf from leaf.__cause__


@asynccontextmanager
async def read_ahead(source: AsyncIterable[T], slack: int = 0) -> AsyncIterator[AsyncIterator[T]]:
    """Consume `source` in a task of its own. What it raises ends the block and is raised from it."""
    send, receive = anyio.create_memory_object_stream[T](slack)
    async with send, receive, unwrap_single_error() as tasks:
        tasks.start_soon(_forward, source, send)
        yield receive
        tasks.cancel_scope.cancel()  # a block that left early wants no more


async def _forward(source: AsyncIterable[T], send: MemoryObjectSendStream[T]) -> None:
    async with send:
        async for piece in source:
            await send.send(piece)


# Work in a thread that nobody waits for, piece by piece and in order.
#
#   > async with beside() as thread:
#   >     async for piece in source:
#   >     await thread.take(digest.update, piece)
#   >     await thread.idle()
#
# To wait for each piece costs more than to hash it: the thread has to be woken, and then the event loop, which has
# other
# things to do. So the thread goes on for as long as there are pieces, and those who bring them wait only when it is
# far
# behind.

_MOST: Final = 3  # pieces that wait for the thread


class ThreadPipe:
    """Of one task. The loop under it must be asyncio."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[bytes], object], bytes]] = deque()
        self._at_work = self._given_up = False
        self._changed = asyncio.Event()

    async def take(self, work: Callable[[bytes], object], piece: bytes) -> None:
        """Have `work` done on the piece after all that came before it. What it raises ends the block."""
        while len(self._waiting) >= _MOST:
            await self._change()
        self._waiting.append((work, piece))
        if not self._at_work:
            self._at_work = True
            self._tasks.start_soon(self._run)

    async def idle(self) -> None:
        """Until everything taken so far is done."""
        while self._at_work:
            await self._change()

    def give_up(self) -> None:
        """Nobody wants to hear any more of what was taken."""
        self._given_up = True
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await to_thread.run_sync(self._work)
        except Exception:
            if not self._given_up:
                raise
        self._at_work = False
        self._changed.set()

    def _work(self) -> None:
        """In the thread."""
        while True:
            try:
                work, piece = self._waiting.popleft()
            except IndexError:  # asked before, it might be gone the moment after
                return
            self._loop.call_soon_threadsafe(self._changed.set)
            work(piece)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@asynccontextmanager
async def thread_pipe() -> AsyncIterator[ThreadPipe]:
    """What the work raises is raised from the block, unless that has failed itself. All that was taken is done when the
    block ends well."""
    async with unwrap_single_error() as tasks:
        thread = ThreadPipe(tasks)
        try:
            yield thread
        except BaseException:
            thread.give_up()
            raise


# A flag that any task can raise and one task sleeps on.


class Wake:
    """Raised any number of times, it wakes once; raised before the wait, it ends the wait at once."""

    def __init__(self) -> None:
        self._raised = anyio.Event()

    def __call__(self) -> None:
        self._raised.set()

    async def wait(self, seconds: float) -> bool:
        """Until raised, `seconds` at most; lowers the flag. False when the time ran out."""
        with anyio.move_on_after(seconds):
            await self._raised.wait()
        raised = self._raised.is_set()
        self._raised = anyio.Event()
        return raised


# Waiting, at boot, for what is still starting: a machine that comes up starts everything at once.

log = structlog.get_logger(__name__)

_PAUSE: Final = 1.0  # seconds between attempts


class StartupPatience:
    """`seconds` for all that is waited for together."""

    def __init__(self, seconds: float, pause: float = _PAUSE) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def retry_until_ready(self, there: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns once it raises no `Retryable` any more; that of the attempt at which patience ended
        is raised. `there` is what is waited for, in the log's words."""
        while True:
            try:
                return await attempt()
            except Retryable as error:
                if anyio.current_time() >= self._until:
                    raise
                log.warning(f"waiting for {there}", reason=error.message)
            await anyio.sleep(self._pause)
