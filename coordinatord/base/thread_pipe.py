"""Pipe that passes bytes from the event loop to work in a thread."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from anyio.abc import TaskGroup

from coordinatord.base.concurrency import unwrap_single_error

# Pieces that may wait for the thread.
_MAX_WAITING: Final = 3


class ThreadPipe:
    """Runs work in a thread, piece by piece and in order, without waiting for each piece. For one task, under asyncio.

        async with thread_pipe() as thread:
            async for piece in source:
                await thread.take(digest.update, piece)
            await thread.idle()

    Waiting for each piece costs more than hashing it, because the thread and then the event loop must wake up. So the
    thread continues while there are pieces, and the task waits only when the thread is far behind.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[bytes], object], bytes]] = deque()
        self._at_work = self._given_up = False
        self._changed = asyncio.Event()

    async def take(self, work: Callable[[bytes], object], piece: bytes) -> None:
        """Queue `work` on the piece, after all earlier pieces. An error of the work ends the block."""
        while len(self._waiting) >= _MAX_WAITING:
            await self._change()
        self._waiting.append((work, piece))
        if not self._at_work:
            self._at_work = True
            self._tasks.start_soon(self._run)

    async def idle(self) -> None:
        """Wait until all queued work is done."""
        while self._at_work:
            await self._change()

    def give_up(self) -> None:
        """Drop queued work, because the block failed."""
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
        """Run queued work, in the thread."""
        while True:
            try:
                work, piece = self._waiting.popleft()
            # A check before the pop could race with `give_up`.
            except IndexError:
                return
            self._loop.call_soon_threadsafe(self._changed.set)
            work(piece)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@asynccontextmanager
async def thread_pipe() -> AsyncIterator[ThreadPipe]:
    """ThreadPipe for a block. Errors of the work are raised from the block, unless the block fails itself. All work
    is done when the block ends without an error."""
    async with unwrap_single_error() as tasks:
        thread = ThreadPipe(tasks)
        try:
            yield thread
        except BaseException:
            thread.give_up()
            raise
