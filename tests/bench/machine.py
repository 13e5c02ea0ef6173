"""The machine that a run had: how slow it is beside the one that absolute targets were set on, and what else used it.

Targets in milliseconds, or in jobs a second, were set on a machine on which two bare secp256k1 recoveries take 79 µs.
The same type of machine is up to twice as slow on another day: the neighbour on a core's other thread, or the
hypervisor, takes its share. So the same two recoveries are timed right before each benchmark and right after it, and
what is absolute among its rows is held against its target times what they took over 79 µs: a machine that is twice as
slow may take twice the milliseconds and do half the jobs. Rows of CPU time go by the CPU time of the recoveries, which
nobody else's work makes longer, and all others by the clock, so that what is stolen counts. A faster machine gets no
harder target. Seconds that are spent on waiting for blocks are the same everywhere, and so are bytes: they are not
scaled, and neither are ratios of two figures of the same run.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import attrs

from tests.bench.checking import bare_recover
from tests.bench.row import Row
from tests.cpu_times import cpu_of

US_OF_TARGETS: Final = 79.0  # of two bare recoveries, on the machine of the targets
MOST_OTHERS: Final = 0.10  # of the CPU, by processes that are none of ours
MOST_STOLEN: Final = 0.25  # of the CPU, by the hypervisor: what a rented machine loses while it works hard is less
_PORTIONS: Final = 11  # of which the median counts: one that was interrupted does not
_PAIRS: Final = 100  # of recoveries, in a portion
_FEW: Final = 15  # of them, beside what is measured: a hundredth of a core
_EVERY: Final = 0.15  # seconds
_TICK: Final = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Bare:
    """Microseconds that two bare recoveries take, by the CPU time of their thread, and by the clock."""

    cpu: float
    clock: float

    @classmethod
    def now(cls, cpu: Callable[[], float] = time.thread_time, clock: Callable[[], float] = time.perf_counter) -> "Bare":
        recover, taken = bare_recover(), []
        for _ in range(_PORTIONS):
            began = cpu(), clock()
            for _ in range(_PAIRS):
                recover()
            taken.append((cpu() - began[0], clock() - began[1]))
        by_cpu, by_clock = (statistics.median(each) / _PAIRS * 1e6 for each in zip(*taken, strict=True))
        return cls(by_cpu, by_clock)

    def and_then(self, later: "Bare") -> "Bare":
        """What they took between two moments: the mean of both."""
        return Bare((self.cpu + later.cpu) / 2, (self.clock + later.clock) / 2)

    def held(self, row: Row) -> Row:
        """What is absolute is held against its target as this machine has it."""
        us = self.cpu if row.absolute == "CPU" else self.clock
        by = "of CPU" if row.absolute == "CPU" else "by the clock"
        said = f"two bare recoveries take {us:.0f} µs {by}, and {US_OF_TARGETS:.0f} on the machine of the targets"
        return row.here(max(1.0, us / US_OF_TARGETS), said)


@asynccontextmanager
async def slowdown(cpu: Callable[[], float] = time.thread_time) -> AsyncIterator[Callable[[], float]]:
    """Function that tells how many times slower than the machine of the targets this one is while the block runs, by
    the CPU time of a few recoveries now and then. CPU of two runs that are minutes apart is divided by it: what the
    machine is like right before a run or after it says little of the run."""
    taken: list[float] = []

    def times() -> float:
        return statistics.fmean(taken) / US_OF_TARGETS

    async def take() -> None:
        recover = bare_recover()
        while True:
            began = cpu()
            for _ in range(_FEW):
                recover()
            taken.append((cpu() - began) / _FEW * 1e6)
            await anyio.sleep(_EVERY)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        yield times
        tasks.cancel_scope.cancel()


@attrs.frozen
class Spent:
    """Seconds of CPU since the machine was started: of all that there were, those that processes used, those that the
    hypervisor stole, and those that this process and its descendants used."""

    total: float
    used: float
    stolen: float
    ours: float

    @classmethod
    def read(cls, stat: str, ours: float) -> "Spent":
        """Out of /proc/stat. Interrupts belong to nobody: they are no process's."""
        fields = stat.partition("\n")[0].split()[1:9]
        user, nice, system, _idle, _waiting, _irq, _softirq, stolen = (int(ticks) / _TICK for ticks in fields)
        return cls(sum(map(int, fields)) / _TICK, user + nice + system, stolen, ours)

    @classmethod
    def now(cls) -> "Spent":
        return cls.read(Path("/proc/stat").read_text(encoding="ascii"), *cpu_of(os.getpid()))


@attrs.frozen
class Measured:
    """How a benchmark was measured: its seconds, how slow the machine was, and the shares of its CPU that were stolen,
    and that others used."""

    name: str
    seconds: float
    bare: Bare
    stolen: float
    others: float

    @classmethod
    def between(cls, name: str, seconds: float, bare: Bare, before: Spent, after: Spent) -> "Measured":
        total = max(after.total - before.total, 1 / _TICK)
        others = (after.used - before.used) - (after.ours - before.ours)
        return cls(name, seconds, bare, (after.stolen - before.stolen) / total, max(0.0, others / total))

    @property
    def disturbed(self) -> bool:
        return self.others > MOST_OTHERS or self.stolen > MOST_STOLEN

    def __str__(self) -> str:
        bare = f"two bare recoveries {self.bare.cpu:.0f} µs of CPU, {self.bare.clock:.0f} by the clock"
        shares = f"stolen {self.stolen:.0%} of the CPU, used by others {self.others:.0%}"
        return f"{self.name}, {self.seconds:.0f} s; {bare}; {shares}"


def verdict(found: Sequence[Measured]) -> str:
    """Whether the machine was idle enough to believe figures that missed their targets."""
    if not found:
        return "nothing was measured"
    disturbed = [one for one in found if one.disturbed]
    if disturbed:
        named = ", ".join(f"{one.name} ({one.stolen:.0%} and {one.others:.0%})" for one in disturbed)
        limits = f"over {MOST_STOLEN:.0%} of the CPU was stolen or over {MOST_OTHERS:.0%} used by others"
        return f"the machine was not idle enough for a verdict: {limits} during {named}"
    stolen, others = max(one.stolen for one in found), max(one.others for one in found)
    return f"the machine was idle enough for a verdict: at most {stolen:.0%} stolen, {others:.0%} used by others"
