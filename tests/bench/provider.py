"""The provider's daemon: CPU per job.

The real process with its echo backend, and a fake coordinator in another process (provider_stand_in.py), because
otherwise the chain's pace would be measured. CPU time is the daemon's user and system time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs
import httpx

from devnet.ports import pick_free
from tests.bench.row import Row
from tests.support.fakes.market import START, Market

MAX_CPU_MS_PER_JOB: Final = 8.0
SLOTS: Final = 200
_ENDLESS_JOBS: Final = 10**6
_WARM_UP_JOBS: Final = 200
_SLICES: Final = 8
_SLICE_S: Final = 1.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Progress:
    """Settled jobs of the fake coordinator so far, and the claimed ones."""

    settled: int
    held: int


@contextmanager
def _stand_in(jobs: int) -> Iterator[str]:
    port = pick_free()
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.provider_stand_in", str(port), str(jobs)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _configuration(directory: Path, url: str, delay: float, slots: int) -> Path:
    path = directory / "svcd.toml"
    path.write_text(
        f'state_directory = "{directory}/state"\nlog_level = "error"\n[coordinator]\nurl = "{url}"\n'
        f'[gateway]\nurls = ["{url}"]\n[keys]\nwallet = "$WALLET"\nbox = "$BOX"\n[metrics]\nport = 0\n'
        f'[[model]]\nname = "demo/text"\nslots = {slots}\n'
        '[[model.ask]]\nsla_seconds = 600\nrate_in = "1"\nrate_out = "1"\n'
        f'[model.backend]\nkind = "echo"\ndelay_seconds = {delay}\n'
    )
    return path


@contextmanager
def _daemon(directory: Path, url: str, delay: float, slots: int) -> Iterator[int]:
    known = Market(lambda: START)  # its keys are constants
    environment = {"PATH": os.environ["PATH"], "WALLET": "11" * 32, "BOX": known.box.raw.hex()}
    configuration = _configuration(directory, url, delay, slots)
    process = subprocess.Popen([sys.executable, "-m", "svcd", "run", "--config", str(configuration)], env=environment)
    try:
        yield process.pid
    finally:
        process.kill()  # a shutdown would first give up all held jobs
        process.wait()


@contextmanager
def running(jobs: int, delay: float, slots: int) -> Iterator[tuple[int, Callable[[], Progress]]]:
    """Yield the daemon's process id, and a function that returns the fake coordinator's progress."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(_stand_in(jobs))
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False))

        def listens() -> bool:
            try:
                http.get("/stand-in")
            except httpx.ConnectError:
                return False
            return True

        until(listens)
        pid = stack.enter_context(_daemon(directory, url, delay, slots))
        yield pid, lambda: Progress(**http.get("/stand-in").json())


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def rows() -> list[Row]:
    cpu = _cpu_per_job()
    return [Row.of("CPU of svcd per job", cpu, "ms", f"{MAX_CPU_MS_PER_JOB:g} ms", MAX_CPU_MS_PER_JOB, at_most=1)]


def _cpu_per_job() -> list[float]:
    """Return milliseconds in each slice of time, once the first jobs have filled caches and started threads."""
    with running(_ENDLESS_JOBS, 0.0, SLOTS) as (pid, progress):
        until(lambda: progress().settled >= _WARM_UP_JOBS)
        marks = [(progress().settled, cpu_seconds(pid))]
        for _ in range(_SLICES):
            time.sleep(_SLICE_S)
            marks.append((progress().settled, cpu_seconds(pid)))
    return [1000 * (after - before) / (last - first) for (first, before), (last, after) in pairwise(marks)]
