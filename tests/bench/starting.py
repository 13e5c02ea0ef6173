"""Starts of the three programs: CPU time from the command to its answer, with the bytecode that an installation writes.

CPU and not time on the clock: with a core to spare the two differ by the time that files take to be read. What a
command line that is only read imports is held by tests; a command waits for what it works with besides, which is httpx,
rich and an event loop for `svc`, and the daemon itself for the others.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Final

from tests.bench.row import Row

_TURNS: Final = 5  # after one that is not counted: it writes the bytecode, and brings the files into memory
_STARTS: Final = (  # most: ms
    ("svc --help", ("svc", "--help"), 150.0),
    ("svc jobs, without a wallet", ("svc", "jobs"), 400.0),
    ("svcd --version", ("svcd", "--version"), 150.0),
    ("svcd run, without a configuration", ("svcd", "run", "--config", "/nowhere"), 500.0),
    ("coordinatord check --help", ("coordinatord", "check", "--help"), 200.0),
    ("coordinatord keys, without settings", ("coordinatord", "keys"), 700.0),
)


def _cpu_ms(words: tuple[str, ...], bytecode: str) -> float:
    environment = {"PATH": os.environ["PATH"], "HOME": bytecode, "PYTHONPYCACHEPREFIX": bytecode}
    before = _children_ms()
    subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, check=False)
    return _children_ms() - before


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def rows() -> list[Row]:
    measured = []
    with tempfile.TemporaryDirectory() as bytecode:
        for name, words, most in _STARTS:
            _, *taken = [_cpu_ms(words, bytecode) for _ in range(1 + _TURNS)]
            middle = statistics.median(taken)
            measured.append(
                Row(f"start: {name}", middle, "ms of CPU", f"{most:g} ms", middle / most, 1, middle <= most)
            )
    return measured


if __name__ == "__main__":
    for row in rows():
        print(row)
