"""Startup of the three programs: CPU time of a command, with bytecode already compiled.

CPU time instead of wall time: with a free core they differ only by the time to read files. Other tests check the
imports of a command. `svc jobs` without a wallet parses its command line and fails. `svc status` rejects its
coordinator's address after importing the complete client. `svcd run` imports the complete daemon before it reads its
configuration. `coordinatord keys` only needs the settings, and the last row adds the imports of `serve`.

All run where the tests' packages are installed too. httpx and structlog import rich, click and pygments if present.
Only the extra `client` installs these, so they are hidden from the daemons.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.row import Row, in_turn

_TURNS: Final = 5  # after an uncounted one, which compiles bytecode and loads files into memory
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
