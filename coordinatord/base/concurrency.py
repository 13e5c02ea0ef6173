"""Concurrency: streams read ahead, work in a thread, task groups with one error, wake-up flags, retries at boot."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from coordinatord.base.errors import Retryable

T = TypeVar("T")


@asynccontextmanager
async def unwrap_single_error() -> AsyncIterator[TaskGroup]:
    """Task group whose single error is raised as itself, not in a group: callers match on it."""
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
    """Consume `source` in a task of its own. What it raises ends the block and is raised from it.

        async with read_ahead(source) as pieces:
            async for piece in pieces: ...

    While the block works on one piece, the next is being made. At most `slack` finished pieces wait between the two,
    so that memory stays bounded whichever side is the slower one.
    """
    send, receive = anyio.create_memory_object_stream[T](slack)
    async with send, receive, unwrap_single_error() as tasks:
        tasks.start_soon(_forward, source, send)
        yield receive
        tasks.cancel_scope.cancel()  # a block that left early wants no more


async def _forward(source: AsyncIterable[T], send: MemoryObjectSendStream[T]) -> None:
    async with send:
        async for piece in source:
            await send.send(piece)


_MOST: Final = 3  # pieces that wait for the thread


class ThreadPipe:
    """Work in a thread, piece by piece and in order, without waiting for each piece. For one task, under asyncio.

        async with thread_pipe() as thread:
            async for piece in source:
                await thread.take(digest.update, piece)
            await thread.idle()

    Waiting for each piece costs more than hashing it: the thread has to be woken, and then the event loop. So the
    thread goes on for as long as there are pieces, and the task waits only when the thread is far behind.
    """

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
    """ThreadPipe for a block. Errors of the work are raised from the block, unless that has failed itself. All work is
    done when the block ends well."""
    async with unwrap_single_error() as tasks:
        thread = ThreadPipe(tasks)
        try:
            yield thread
        except BaseException:
            thread.give_up()
            raise


class Wake:
    """Flag that any task can raise and one task sleeps on.

    Raised any number of times, it wakes once; raised before the wait, it ends the wait at once.
    """

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


class Mailbox(Generic[T]):
    """Queue from any task to one task that takes everything at once. `put` never waits."""

    def __init__(self, capacity: int) -> None:
        """Items beyond `capacity` are dropped."""
        self._capacity = capacity
        self._items: list[T] = []
        self._filled = Wake()

    def put(self, item: T) -> None:
        if len(self._items) < self._capacity:
            self._items.append(item)
            self._filled()

    async def take(self, seconds: float) -> list[T]:
        """Return every item since the last call, once there is one. Return none after `seconds`."""
        if not self._items:
            await self._filled.wait(seconds)
        items, self._items = self._items, []
        return items


log = structlog.get_logger(__name__)

_PAUSE: Final = 1.0  # seconds between attempts


class StartupPatience:
    """Retries at boot, of whatever is still starting: a machine that comes up starts everything at once. `seconds`: for
    all attempts together."""

    def __init__(self, seconds: float, pause: float = _PAUSE) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def retry_until_ready(self, there: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Result of the first attempt that raises no `Retryable`. Raises that of the last attempt when time is over.
        `there`: what is waited for, in the log's words."""
        while True:
            try:
                return await attempt()
            except Retryable as error:
                if anyio.current_time() >= self._until:
                    raise
                log.warning(f"waiting for {there}", reason=error.message)
            await anyio.sleep(self._pause)
