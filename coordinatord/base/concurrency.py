"""Concurrency: streams read ahead, work in a thread, task groups with one error, wake-up flags, retries at boot."""

import asyncio
import math
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


class InTray(Generic[T]):
    """Things that any task hands over to one that works for all of them, in their order. Nobody waits for that."""

    def __init__(self, most: int) -> None:
        """`most`: what is handed over beyond so many is lost."""
        self._most = most
        self._things: list[T] = []
        self._there = Wake()

    def put(self, thing: T) -> None:
        if len(self._things) < self._most:
            self._things.append(thing)
            self._there()

    async def take(self) -> list[T]:
        """All that was handed over since the last time, once there is something."""
        while not self._things:
            await self._there.wait(math.inf)
        things, self._things = self._things, []
        return things


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


_MOST_LASTING: Final = 8192
_MOST_LASTING_BYTES: Final = 64 * 2**20

Stored = Callable[[int], None]
"""Told of an id, when what was asked for is in the database and will be done."""


def ignored(_: int) -> None:
    """A `Stored` of those who wait for the end."""


class LastingTasks:
    """Work that outlives the request that began it, and with it the bounds of requests: it has bounds of its own, in
    number and in bytes. Beyond them, and before `run` is running, requests wait as ever."""

    def __init__(self, most: int = _MOST_LASTING, most_bytes: int = _MOST_LASTING_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._begun = self._bytes = 0
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled, and all work with it."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def until_stored(self, act: Callable[[Stored], Awaitable[T]], size: int = 0) -> T | None:
        """What `act` gives or raises; or None as soon as it tells that it has stored its work, with which it goes on.
        A caller that goes away before ends it. `size`: bytes that it holds meanwhile."""
        tasks = self._tasks
        if tasks is None or self._begun >= self._most or self._bytes + size > self._most_bytes:
            return await act(ignored)
        ended: list[T] = []
        errors: list[Exception] = []
        told = anyio.Event()
        stored = False
        scope = anyio.CancelScope()
        self._begun += 1
        self._bytes += size

        def store(_: int) -> None:
            nonlocal stored
            stored = True
            told.set()

        async def work() -> None:
            try:
                with scope:
                    ended.append(await act(store))
            except Exception as error:
                errors.append(error)
                if stored:
                    log.info("work that nobody waits for any more ended", reason=str(error) or type(error).__name__)
            finally:
                self._begun -= 1
                self._bytes -= size
                told.set()

        tasks.start_soon(work)
        try:
            await told.wait()
        finally:
            if not stored:
                scope.cancel()
        if stored:
            return None
        if errors:
            raise errors[0]
        if not ended:
            raise Retryable("not_ready", "this process stops; send the same again", retry_after=1)
        return ended[0]


RELAY_QUEUE_FULL: Final = "relay_queue_full"
_MOST_WAITING: Final = 512
_LOOKS_A_SECOND: Final = 800  # of all who wait together
_SOONEST: Final = 0.02


class BurstRoom:
    """Lets a burst wait for room in a queue that is full for the moment.

    What a block frees, everybody wants at once: a queue that is emptied many times a second need not send them away for
    a second or more. One that stays full for `patience` seconds refuses them as it would have done at once.
    """

    def __init__(self, code: str, patience: float = 2.0) -> None:
        """`code`: that of the refusal which says that the queue is full."""
        self._code = code
        self._patience = patience
        self._waiting = 0

    async def passing(self, act: Callable[[], Awaitable[T]]) -> T:
        """What `act` gives; it is called again while it is refused for want of room."""
        until = anyio.current_time() + self._patience
        while True:
            try:
                return await act()
            except Retryable as full:
                late = anyio.current_time() >= until or self._waiting >= _MOST_WAITING
                if full.code != self._code or late:
                    raise
            self._waiting += 1
            try:
                await anyio.sleep(max(_SOONEST, self._waiting / _LOOKS_A_SECOND))
            finally:
                self._waiting -= 1
