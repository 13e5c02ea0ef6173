"""Pipe of bytes from the event loop to work in a thread."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from anyio.abc import TaskGroup

from coordinatord.base.concurrency import unwrap_single_error

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
