"""The provider's daemon: what a job costs it, whether it grows, and how many jobs it holds at a time.

The real process with its echo backend, against a stand-in coordinator in another process (provider_stand_in.py): the
chain's pace would otherwise be what is measured. CPU time is the daemon's own, user and system.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from devnet.ports import pick_free
from tests.bench.memory import resident
from tests.bench.row import Row
from tests.fakes.market import START, Market

JOBS: Final = 5_000
CPU_LIMIT: Final = 5.0  # ms per job
SLOTS: Final = 200
HELD: Final = 1_000
HELD_LIMIT: Final = 200.0  # MiB, with so many jobs held
_WARM: Final = 0.2  # of the jobs, before anything is measured: caches fill, pools and worker threads start


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """MiB that it held at most."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


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
        f'[gateway]\nurls = ["{url}"]\n[keys]\nwallet_env = "WALLET"\nbox_env = "BOX"\n[metrics]\nport = 0\n'
        f'[[model]]\nname = "demo/text"\nslots = {slots}\npoll_seconds = 0.05\n'
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


def _measure(jobs: int, delay: float, at: dict[int, Callable[[int], None]], slots: int = SLOTS) -> dict[str, Any]:
    """Runs so many jobs; calls each function of `at` with the daemon's id when so many are settled."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(_stand_in(jobs))
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False))
        _wait_for(http)
        pid = stack.enter_context(_daemon(directory, url, delay, slots))
        progress: dict[str, Any] = {"settled": 0}
        waiting = sorted(at)
        while progress["settled"] < jobs:
            time.sleep(0.01)
            progress = http.get("/stand-in").json()
            while waiting and progress["settled"] >= waiting[0]:
                at[waiting.pop(0)](pid)
        return progress


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
    _measure(jobs, 0.0, {warm: note, jobs: note})
    each = (cpu[1] - cpu[0]) / (jobs - warm) * 1000
    grown = memory[1] / memory[0]
    peaks: list[float] = []
    held = _measure(2 * HELD, 20.0, {2 * HELD: lambda pid: peaks.append(peak(pid))}, HELD)["most_held"]
    return [
        Row(
            f"a provider's CPU per job, over {jobs:,}",
            each,
            "ms",
            f"{CPU_LIMIT:g} ms",
            each / CPU_LIMIT,
            1,
            each <= CPU_LIMIT,
        ),
        Row(f"a provider's memory after {jobs:,} jobs", memory[1], "MiB", f"after {warm:,}", grown, 1.1, grown <= 1.1),
        Row("jobs that one provider holds at a time", held, "jobs", f"{HELD} slots", held / HELD, 1, held >= HELD),
        Row(
            f"a provider's memory with {held:,} jobs held",
            peaks[0],
            "MiB",
            f"{HELD_LIMIT:g} MiB",
            peaks[0] / HELD_LIMIT,
            1,
            peaks[0] <= HELD_LIMIT,
        ),
    ]
