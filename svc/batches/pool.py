"""Process pool for the lines of a batch, one process per core; this one hands out and gathers.

Measured on two cores with 5,000 lines of 100 bytes: 1.6 s of CPU in one process, 0.95 to 1.06 s in each of two (their
start included), which is a factor of 1.5 to 1.7; this process then works 0.15 s and stays free for its pipes.

Threads would not do: half of a line's time is Python's, and a thread that works here would keep this process from
its pipes. `multiprocessing` would run the caller's main module again in every process, and a script without a guard
would then submit its batch twice.
"""

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from subprocess import PIPE
from typing import Final

import anyio
import attrs
from anyio.abc import ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.batches.worker import LENGTH, framed, unframed
from svc.core.batches import LineWork, Place, PreparedLine
from svc.errors import OrderRefused

PORTION: Final = 100  # lines that are taken at a time
ALONE: Final = 5 * PORTION  # of a process: it takes a while to start

# On Windows there are no sessions: there a group of its own keeps Ctrl-C from it (CREATE_NEW_PROCESS_GROUP).
_FLAGS: Final = 0x200 if sys.platform == "win32" else 0

Outcome = PreparedLine | Refused
Progress = Callable[[int], object]


@attrs.frozen(slots=True)
class Portion:
    place: Place
    lines: Sequence[LineWork]


Making = Callable[[Portion], Awaitable[Sequence[Outcome]]]


@attrs.define(eq=False)
class Worker:
    """A process that makes lines. It is told of the place, which a batch has one of, with its first portion."""

    process: Process
    wallet: Wallet
    source: ByteSendStream
    answers: BufferedByteReceiveStream
    told: bool = False

    async def hand(self, portion: Portion) -> None:
        if not self.told:
            await self.source.send(framed((portion.place, self.wallet)))
            self.told = True
        await self.source.send(framed(portion.lines))

    async def answer(self) -> Sequence[Outcome]:
        (length,) = LENGTH.unpack(await self.answers.receive_exactly(LENGTH.size))
        outcomes: Sequence[Outcome] = unframed(await self.answers.receive_exactly(length))
        return outcomes


@asynccontextmanager
async def started_workers(lines: int, wallet: Wallet | None) -> AsyncIterator[list[Worker]]:
    """Processes for so many lines, which start while the first ones are read. They end with the block.

    None without a wallet that can be given to them, and where a second one would not be worth its start.
    """
    count = min(os.cpu_count() or 1, lines // ALONE) if sys.executable else 0
    workers: list[Worker] = []
    try:
        if wallet is not None and count > 1:
            for _ in range(count):
                workers.append(await _started(wallet))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()  # it holds nothing that outlives it
        with anyio.CancelScope(shield=True):
            for worker in workers:
                await worker.process.aclose()


@attrs.define
class Pool:
    """Makes lines, with `workers` or, without any, by `alone`. `lines` are those made so far, in their order.

    `progress` is told how many are done.
    """

    workers: Sequence[Worker]
    alone: Making
    progress: Progress | None
    lines: list[PreparedLine] = attrs.field(factory=list)

    async def make(self, portions: AsyncGenerator[Portion, None]) -> None:
        """Raises OrderRefused that names the first line which cannot be made, or whatever ended `portions`."""
        sharing = _Sharing(portions, self.progress, len(self.lines))
        async with aclosing(portions), anyio.create_task_group() as tasks:
            for worker in self.workers:
                tasks.start_soon(sharing.keep_busy, worker)
            if not self.workers:
                tasks.start_soon(sharing.work, self.alone)
        for at in sorted(sharing.outcomes):
            for outcome in sharing.outcomes[at]:
                if isinstance(outcome, Refused):
                    raise OrderRefused.because(outcome, f"line {len(self.lines) + 1}")
                self.lines.append(outcome)
        if sharing.error is not None:
            raise sharing.error


@attrs.define
class _Sharing:
    """Portions, taken one by one by whoever is free, until there are no more or a line is refused.

    They are taken in their order, so that every line before a refused one has been looked at when all are done. What
    ends `portions` early is kept, for it may be about a later line.
    """

    portions: AsyncGenerator[Portion, None]
    progress: Progress | None
    done: int
    outcomes: dict[int, Sequence[Outcome]] = attrs.field(factory=dict)
    error: Exception | None = None
    _taken: int = 0
    _ended: bool = False
    _taking: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def keep_busy(self, worker: Worker) -> None:
        """The next portion lies ready while one is worked on, so that the worker never waits for us."""
        slots = anyio.Semaphore(2)
        sent, taken = anyio.create_memory_object_stream[int](1)

        async def hand_out() -> None:
            async with sent:
                while True:
                    await slots.acquire()
                    portion = await self._take()
                    if portion is None:
                        return
                    await sent.send(portion[0])
                    await worker.hand(portion[1])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hand_out)
            async with taken:
                async for at in taken:
                    self._finish(at, await worker.answer())
                    slots.release()

    async def work(self, making: Making) -> None:
        while (taken := await self._take()) is not None:
            at, portion = taken
            self._finish(at, await making(portion))

    async def _take(self) -> tuple[int, Portion] | None:
        async with self._taking:
            if self._ended:
                return None
            try:
                portion = await anext(self.portions, None)
            except Exception as error:
                portion, self.error = None, error
            if portion is None:
                self._ended = True
                return None
            self._taken += 1
            return self._taken, portion

    def _finish(self, at: int, outcomes: Sequence[Outcome]) -> None:
        self.outcomes[at] = outcomes
        self.done += len(outcomes)
        self._ended = self._ended or any(isinstance(outcome, Refused) for outcome in outcomes)
        if self.progress is not None:
            self.progress(self.done)


async def _started(wallet: Wallet) -> Worker:
    # -P: a module in whatever folder this is called from must not be run in its place, with the key in its hands.
    command = [sys.executable, "-P", "-m", "svc.batches.worker"]
    # It finds what we find, however we came to find it; and Ctrl-C is ours to handle.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await anyio.open_process(
        command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment, start_new_session=True, creationflags=_FLAGS
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("it was started with both pipes")
    return Worker(process, wallet, process.stdin, BufferedByteReceiveStream(process.stdout))
