"""Causes of a service's failure, read from its exit status and its last lines, each with its remedy.

A program that fails prints a symptom, in words for its own developers. A person at a terminal needs the folder, the
port, the memory or the library that is at fault, and what to do.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LINES: Final = 40  # of a log, from its end
_MIB: Final = 2**20

# In the order in which they are looked for; a place is the folder that the service keeps its files in.
_CAUSES: Final[tuple[tuple[str, Callable[[re.Match[str], Path], str]], ...]] = (
    (
        r"(?i)address (already )?in use",
        lambda _, __: "a port that it needs was taken while it started: start again, or choose another "
        "(`devnet up --help` lists the flags)",
    ),
    (
        r"(?i)no space left on device|disk full|disk quota exceeded",
        lambda _, place: f"the disk that {place} lies on is full: free 300 MB there, or choose another folder "
        "with --state-dir",
    ),
    (
        r"(?i)cannot allocate memory|out of memory|memoryerror",
        lambda _, __: f"there is too little memory ({available_memory()}): end other programs, or allow more",
    ),
    (
        r"error while loading shared libraries: ([^\s:]+)",
        lambda found, _: f"the system has no {found[1]}: install the package that holds it",
    ),
    (
        r"version `?(GLIBC_[\d.]+)'? not found",
        lambda found, _: f"the system's C library is older than {found[1]}: a newer system is needed "
        "(Debian 12, Ubuntu 22.04 or later)",
    ),
    (
        r"(?i)exec format error",
        lambda _, __: "the program is for another kind of processor: remove .venv and node_modules (`make clean`) "
        "and run `make setup` on this machine",
    ),
    (
        r"(?i)too many open files|insufficient file descriptors",
        lambda _, __: "too few open files are allowed: raise the limit (`ulimit -n 4096`)",
    ),
    (
        r"(?i)read-only file system",
        lambda _, place: f"{place} cannot be written: choose another folder with --state-dir",
    ),
    (
        r"(?i)permission denied|operation not permitted",
        lambda _, place: _closed(place),
    ),
)  # fmt: skip


def telling_line(log: str) -> str:
    """The line that says most: the last that speaks of an error, else the last."""
    lines = [line.strip() for line in log.strip().splitlines()][-_LINES:]
    errors = [line for line in lines if re.search(r"(?i)\berror\b|\bfatal\b|panic|cannot|could not|denied", line)]
    return (errors or lines or [""])[-1]


def cause_of(status: int | None, log: str, place: Path) -> str | None:
    """What is at fault, and the remedy; None where that is not known."""
    said = "\n".join(log.splitlines()[-_LINES:])
    for pattern, explain in _CAUSES:
        if (found := re.search(pattern, said)) is not None:
            return explain(found, place)
    if status == -signal.SIGKILL:
        return (
            f"somebody killed it; if nobody did, the system was out of memory ({available_memory()}): "
            "end other programs, or allow more"
        )
    return None


def available_memory() -> str:
    """What the system says that it has left, for a sentence."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        found = None
    return "how much is left is unknown" if found is None else f"{int(found[1]) * 1024 // _MIB} MiB are left"


def closed_folder(path: Path) -> Path | None:
    """The first folder on the way to `path` that others than its owner cannot enter."""
    for folder in reversed((path, *path.parents)):
        try:
            if folder.is_dir() and not folder.stat().st_mode & 0o001:
                return folder
        except OSError:
            return folder
    return None


def _closed(place: Path) -> str:
    folder = closed_folder(place)
    if folder is None:
        return f"it may not use what it needs below {place}: look at the owner and the mode of what is named"
    return f"it cannot enter {folder}: `chmod o+x {folder}`, or take a folder that everybody can enter"
