"""The machine of a run: its speed relative to the one on which targets were set, and its other load.

Targets in milliseconds, or in jobs a second, were set on a machine on which two bare secp256k1 recoveries take 79 µs.
The same type of machine can be half as fast on another day, because of the core's other thread or the hypervisor. So
the same recoveries are timed right before and after each benchmark, and absolute targets are scaled by their time over
79 µs. A machine that is half as fast may take twice the milliseconds and do half the jobs. Rows of CPU time use the CPU
time of the recoveries, which other load does not affect. All others use wall time, so stolen time counts. A faster
machine gets no harder target. Waiting for blocks takes the same time everywhere, so such seconds are not scaled.
Neither are bytes or ratios of two figures of the same run.
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

US_OF_TARGETS: Final = 79.0  # for two bare recoveries, on the machine of the targets
MOST_OTHERS: Final = 0.10  # of the CPU, by other processes
MOST_STOLEN: Final = 0.25  # of the CPU, by the hypervisor; a rented machine under full load loses less
_PORTIONS: Final = 11  # the median ignores interrupted ones
_PAIRS: Final = 100  # recoveries per portion
_FEW: Final = 15  # portions, during measurements: a hundredth of a core
_EVERY: Final = 0.15  # seconds
_TICK: Final = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Bare:
    """Microseconds of two bare recoveries, by CPU time of their thread and by the clock."""

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
        """Return the mean of two times."""
        return Bare((self.cpu + later.cpu) / 2, (self.clock + later.clock) / 2)

    def held(self, row: Row) -> Row:
        """Scale the target of an absolute row to this machine."""
        us = self.cpu if row.absolute == "CPU" else self.clock
        by = "of CPU" if row.absolute == "CPU" else "by the clock"
        said = f"two bare recoveries take {us:.0f} µs {by}, and {US_OF_TARGETS:.0f} on the machine of the targets"
        return row.here(max(1.0, us / US_OF_TARGETS), said)


@asynccontextmanager
async def slowdown(cpu: Callable[[], float] = time.thread_time) -> AsyncIterator[Callable[[], float]]:
    """Yield a function that returns how many times slower this machine is than the targets' machine during the block,
    from the CPU time of occasional recoveries. Divide CPU times of runs that are minutes apart by it: the machine's
    speed before or after a run says little about the run."""
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
    """CPU seconds since boot: all, used by processes, stolen by the hypervisor, and used by this process and its
    descendants."""

    total: float
    used: float
    stolen: float
    ours: float

    @classmethod
    def read(cls, stat: str, ours: float) -> "Spent":
        """Parse /proc/stat. Time in interrupts counts for no process."""
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
    """Describe whether the machine was idle enough to trust figures that missed their targets."""
    if not found:
        return "nothing was measured"
    disturbed = [one for one in found if one.disturbed]
    if disturbed:
        named = ", ".join(f"{one.name} ({one.stolen:.0%} and {one.others:.0%})" for one in disturbed)
        limits = f"over {MOST_STOLEN:.0%} of the CPU was stolen or over {MOST_OTHERS:.0%} used by others"
        return f"the machine was not idle enough for a verdict: {limits} during {named}"
    stolen, others = max(one.stolen for one in found), max(one.others for one in found)
    return f"the machine was idle enough for a verdict: at most {stolen:.0%} stolen, {others:.0%} used by others"
