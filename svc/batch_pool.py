"""Spreads the lines of a batch over the cores, each a process of its own; this one hands out and gathers.

Threads would not do: half of a line's time is Python's, and a thread that works here would keep this process from
its pipes. `multiprocessing` would run the caller's main module again in every process, and a script without a guard
would then submit its batch twice.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Final

import anyio
import attrs
from anyio import to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.batch_worker import LENGTH, framed, unframed
from svc.core.batch_work import LineWork, Place, PreparedLine, prepare_lines

PORTION: Final = 100  # lines that are taken at a time
ALONE: Final = 5 * PORTION  # of a process: it takes a while to start

Outcome = PreparedLine | Refused
Progress = Callable[[int], object]


@asynccontextmanager
async def started_workers(lines: int) -> AsyncIterator[list[Process]]:
    """Processes for so many lines, which start while the caller gets the lines ready. They end with the block.

    None where a second one would not be worth its start.
    """
    count = min(os.cpu_count() or 1, lines // ALONE) if sys.executable else 0
    count = count if count > 1 else 0
    workers: list[Process] = []
    try:
        for _ in range(count):
            workers.append(await _started())
        yield workers
    finally:
        for worker in workers:
            worker.kill()  # it holds nothing that outlives it
        with anyio.CancelScope(shield=True):
            for worker in workers:
                await worker.aclose()


async def prepared(
    workers: Sequence[Process], place: Place, wallet: Wallet, lines: Sequence[LineWork], progress: Progress | None
) -> list[Outcome]:
    """An outcome per line, in their order. `progress` is told how many are done."""
    sharing = _Sharing(place, wallet, lines, progress, iter(range(0, len(lines), PORTION)))
    if not workers:
        await sharing.work_here()
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(sharing.keep_busy, worker)
    return [outcome for at in sorted(sharing.outcomes) for outcome in sharing.outcomes[at]]


@attrs.define
class _Sharing:
    """The lines, taken portion by portion by whoever is free."""

    place: Place
    wallet: Wallet
    lines: Sequence[LineWork]
    progress: Progress | None
    portions: Iterator[int]
    outcomes: dict[int, list[Outcome]] = attrs.field(factory=dict)

    async def keep_busy(self, worker: Process) -> None:
        """The next portion lies ready while one is worked on, so that the worker never waits for us."""
        sent, taken = anyio.create_memory_object_stream[int](1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hand_out, worker, sent)
            await self._gather(worker, taken)

    async def _hand_out(self, worker: Process, sent: MemoryObjectSendStream[int]) -> None:
        if worker.stdin is None:
            raise AssertionError("it was started with both pipes")
        async with sent:
            await worker.stdin.send(framed((self.place, self.wallet)))
            for at in self.portions:
                await sent.send(at)
                await worker.stdin.send(framed(self.lines[at : at + PORTION]))

    async def _gather(self, worker: Process, taken: MemoryObjectReceiveStream[int]) -> None:
        if worker.stdout is None:
            raise AssertionError("it was started with both pipes")
        answers = BufferedByteReceiveStream(worker.stdout)
        async with taken:
            async for at in taken:
                (length,) = LENGTH.unpack(await answers.receive_exactly(LENGTH.size))
                self._done(at, unframed(await answers.receive_exactly(length)))

    async def work_here(self) -> None:
        for at in self.portions:
            portion = self.lines[at : at + PORTION]
            self._done(at, await to_thread.run_sync(prepare_lines, self.place, self.wallet, portion))

    def _done(self, at: int, portion: list[Outcome]) -> None:
        self.outcomes[at] = portion
        if self.progress is not None:
            self.progress(sum(len(some) for some in self.outcomes.values()))


async def _started() -> Process:
    # -P: a module in whatever folder this is called from must not be run in its place, with the key in its hands.
    command = [sys.executable, "-P", "-m", "svc.batch_worker"]
    # It finds what we find, however we came to find it; and Ctrl-C is ours to handle.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return await anyio.open_process(
        command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment, start_new_session=True
    )
