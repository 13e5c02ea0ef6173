"""Starts of the three programs: CPU time from the command to its answer, with the bytecode that an installation writes.

CPU and not time on the clock: with a core to spare the two differ by the time that files take to be read. What a
command imports is held by tests. `svc jobs` without a wallet is a command line that was read and found lacking; `svc
status` refuses its coordinator's address once all of the client is in memory. `svcd run` has the whole daemon in
memory before it reads its configuration. `coordinatord keys` is a command of the settings alone, and the last row what
`serve` imports besides.

All are measured where the tests' own packages are installed as well. rich, click and pygments, which httpx and
structlog import where they find them, come with the extra `client` alone: they are hidden from the daemons, as they are
not there in an installation of `provider` or `coordinator`.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.row import Row, in_turn

_TURNS: Final = 5  # after one that is not counted: it writes the bytecode, and brings the files into memory
_ELSEWHERE: Final = ("click", "pygments", "rich")  # of the extra `client`
_HIDDEN: Final = f", without {', '.join(_ELSEWHERE)}"
_DAEMONS: Final = ("svcd", "coordinatord")
_REFUSED: Final = ("--coordinator", "http://192.0.2.1")  # not asked: http:// is for this machine alone
_START_MS: Final = 500.0
_SERVE: Final = "coordinatord serve, its modules"
_SERVE_MS: Final = 650.0  # a daemon that runs for months
_STARTS: Final = (
    ("svc --help", ("-m", "svc", "--help")),
    ("svc jobs, without a wallet", ("-m", "svc", "jobs")),
    ("svc status, with all of the client", ("-m", "svc", "status", "0x" + 32 * "11", *_REFUSED)),
    ("svcd --version", ("-m", "svcd", "--version")),
    ("svcd run, without a configuration", ("-m", "svcd", "run", "--config", "/nowhere")),
    ("coordinatord check --help", ("-m", "coordinatord", "check", "--help")),
    ("coordinatord keys, without settings", ("-m", "coordinatord", "keys")),
    (_SERVE, ("-c", "import coordinatord.run.app")),
)


def _hide(folder: Path) -> None:
    """Packages that are found before those installed, and say that they are not there."""
    for name in _ELSEWHERE:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})\n", encoding="utf-8")


def _is_daemon(name: str) -> bool:
    return name.partition(" ")[0] in _DAEMONS


def _cpu_ms(name: str, words: tuple[str, ...], bytecode: str, hidden: str) -> float:
    environment = {"PATH": os.environ["PATH"], "HOME": bytecode, "PYTHONPYCACHEPREFIX": bytecode}
    if _is_daemon(name):
        environment["PYTHONPATH"] = hidden
    before = _children_ms()
    subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=False)
    return _children_ms() - before


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as bytecode, tempfile.TemporaryDirectory() as hidden:
        _hide(Path(hidden))
        taken = {name: [_cpu_ms(name, words, bytecode, hidden)] for name, words in _STARTS}
        for turn in range(1, 1 + _TURNS):
            for name, words in in_turn(_STARTS, turn):
                taken[name].append(_cpu_ms(name, words, bytecode, hidden))
    return [_row(name, taken[name][1:], _SERVE_MS if name == _SERVE else _START_MS) for name, _ in _STARTS]


def _row(name: str, taken: list[float], most: float) -> Row:
    shown = f"start: {name}{_HIDDEN if _is_daemon(name) else ''}"
    return Row.of(shown, taken, "ms of CPU", f"{most:g} ms", most, at_most=1, absolute="CPU")


if __name__ == "__main__":
    for row in rows():
        print(row)
