"""Process pieces of bytes in a thread, in order, while the event loop receives more."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from anyio.abc import TaskGroup

from coordinatord.base.concurrency import single_error_task_group

_MAX_WAITING_PIECES: Final = 3


class ThreadPipe:
    """Runs work in a thread, piece by piece and in order, without waiting for each piece. Only one asyncio task may use
    it.

        async with thread_pipe() as thread:
            async for piece in source:
                await thread.queue_work(digest.update, piece)
            await thread.wait_until_idle()

    Waiting for each piece would cost more than hashing the piece, because the thread and then the event loop must wake
    up. So the task waits only when several pieces are queued.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[bytes], object], bytes]] = deque()
        self._is_running = self._has_failed = False
        self._changed = asyncio.Event()

    async def queue_work(self, work: Callable[[bytes], object], piece: bytes) -> None:
        """Queue `work(piece)` after all earlier work. An error of `work` cancels the `thread_pipe` block and is raised
        from it."""
        while len(self._waiting) >= _MAX_WAITING_PIECES:
            await self._wait_for_change()
        self._waiting.append((work, piece))
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run)

    async def wait_until_idle(self) -> None:
        """Wait until all queued work is done."""
        while self._is_running:
            await self._wait_for_change()

    def drop_queued(self) -> None:
        """Drop queued work, because the `thread_pipe` block failed."""
        self._has_failed = True
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await to_thread.run_sync(self._run_queued_work)
        except Exception:
            if not self._has_failed:
                raise
        self._is_running = False
        self._changed.set()

    def _run_queued_work(self) -> None:
        """Run queued work, in the thread."""
        while True:
            try:
                work, piece = self._waiting.popleft()
            # A check before the pop could race with `drop_queued`.
            except IndexError:
                return
            self._loop.call_soon_threadsafe(self._changed.set)
            work(piece)

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@asynccontextmanager
async def thread_pipe() -> AsyncIterator[ThreadPipe]:
    """Open a ThreadPipe. Errors of the work are raised from the block, unless the block itself fails. When the block
    ends without an error, all work is done."""
    async with single_error_task_group() as tasks:
        thread = ThreadPipe(tasks)
        try:
            yield thread
        except BaseException:
            thread.drop_queued()
            raise
