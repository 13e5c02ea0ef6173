"""The provider's daemon: CPU per job, memory growth, and concurrent jobs.

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
from tests.bench.memory import resident
from tests.bench.row import Row, parts
from tests.fakes.market import START, Market

JOBS: Final = 1_200
CPU_LIMIT: Final = 8.0  # ms per job
SLOTS: Final = 200
HELD: Final = 1_000
HELD_LIMIT: Final = 200.0  # MiB, with this many held jobs
_WAVES: Final = 3  # times the held jobs
_RUNS: Final = 8.0  # seconds of each job, longer than claiming all takes
_PARTS: Final = 4  # of the measured jobs
_WARM: Final = 0.2  # of the jobs, before measuring: caches fill, pools and worker threads start


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """Return the peak memory in MiB since the last call, and reset the peak."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the recorded peak memory
    return int(line.split()[1]) / 1024


@attrs.frozen
class Progress:
    """The fake coordinator's settled jobs so far, and its peak of held jobs since the last read."""

    settled: int
    most_held: int


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
        process.terminate()
        process.wait()


def _measure(jobs: int, delay: float, at: dict[int, Callable[[int], None]], slots: int = SLOTS) -> list[Progress]:
    """Runs so many jobs; calls each function of `at` with the daemon's id when so many are settled. All looks that were
    taken at its progress."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(_stand_in(jobs))
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False))
        _wait_for(http)
        pid = stack.enter_context(_daemon(directory, url, delay, slots))
        looks = [Progress(0, 0)]
        waiting = sorted(at)
        while looks[-1].settled < jobs:
            time.sleep(0.01)
            looks.append(Progress(**http.get("/stand-in").json()))
            while waiting and looks[-1].settled >= waiting[0]:
                at[waiting.pop(0)](pid)
        return looks


def _wait_for(http: httpx.Client) -> None:
    while True:
        try:
            http.get("/stand-in")
            return
        except httpx.ConnectError:
            time.sleep(0.05)


def rows(jobs: int = JOBS) -> list[Row]:
    cpu: list[float] = []
    memory: list[float] = []

    def note(pid: int) -> None:
        cpu.append(cpu_seconds(pid))
        memory.append(resident(pid))

    warm = int(jobs * _WARM)
    marks = [warm, *(warm + part[-1] + 1 for part in parts(range(jobs - warm), _PARTS))]
    _measure(jobs, 0.0, dict.fromkeys(marks, note))
    each = [
        (b - a) / (last - first) * 1000 for (a, b), (first, last) in zip(pairwise(cpu), pairwise(marks), strict=True)
    ]
    peaks: list[float] = []

    def look(pid: int) -> None:
        peaks.append(peak(pid))

    looks = _measure(_WAVES * HELD, _RUNS, {HELD * (wave + 1): look for wave in range(_WAVES)}, HELD)
    held = [max(at.most_held for at in looks if at.settled // HELD == wave) for wave in range(_WAVES)]
    after, allowed = f"after {warm:,} ({memory[0]:.0f} MiB)", f"{HELD_LIMIT:g} MiB"
    return [
        Row.of(
            f"a provider's CPU per job, over {jobs:,}, {SLOTS} slots",
            each,
            "ms",
            f"{CPU_LIMIT:g} ms",
            CPU_LIMIT,
            at_most=1,
            absolute="CPU",
        ),
        Row.of(
            f"a provider's most memory up to {jobs:,} jobs", memory[1:], "MiB", after, memory[0], at_most=1.1, by=max
        ),
        Row.of(
            "jobs that one provider holds at a time, the fewest of three waves",
            held,
            "jobs",
            f"{HELD} slots",
            HELD,
            target=1,
            by=min,
        ),
        Row.of(
            f"a provider's most memory with {HELD:,} slots, all held",
            peaks,
            "MiB",
            allowed,
            HELD_LIMIT,
            at_most=1,
            by=max,
        ),
    ]
