"""Find the cause of a service's failure in its exit status and the end of its log, and suggest a remedy.

The logs of third-party services do not name the devnet's flags or folders, so this module adds them.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOG_TAIL_LINES: Final = 40
_MIB: Final = 2**20


# Patterns in the log. Each has a function that returns cause and remedy from the match and the service's folder. Only
# the first pattern that matches is used.
_FAILURE_CAUSES: Final[tuple[tuple[str, Callable[[re.Match[str], Path], str]], ...]] = (
    (
        r"(?i)address (already )?in use",
        lambda _, __: "another program took one of the devnet's ports during the start: start again, or choose another "
        "port (`devnet up --help` lists the flags)",
    ),
    (
        r"(?i)no space left on device|disk full|disk quota exceeded",
        lambda _, folder: f"the disk of {folder} is full: free 300 MB, or choose another folder with --state-dir",
    ),
    (
        r"(?i)cannot allocate memory|out of memory|memoryerror",
        lambda _, __: f"out of memory ({describe_memory()}): close other programs, or raise the memory limit",
    ),
    (
        r"error while loading shared libraries: ([^\s:]+)",
        lambda found, _: f"the library {found[1]} is missing: install its system package",
    ),
    (
        r"version `?(GLIBC_[\d.]+)'? not found",
        lambda found, _: f"the system's C library is older than {found[1]}: use Debian 12, Ubuntu 22.04 or later",
    ),
    (
        r"(?i)exec format error",
        lambda _, __: "the program was built for another processor: run `make clean`, then `make setup`",
    ),
    (
        r"(?i)too many open files|insufficient file descriptors",
        lambda _, __: "the limit of open files is too low: raise the limit (`ulimit -n 4096`)",
    ),
    (
        r"(?i)read-only file system",
        lambda _, folder: f"{folder} is read-only: choose another folder with --state-dir",
    ),
    (
        r"(?i)permission denied|operation not permitted",
        lambda _, folder: _permission_remedy(folder),
    ),
)  # fmt: skip


def find_error_line(log: str) -> str:
    """Return the last log line that mentions an error, or the last line if no line mentions an error."""
    lines = [line.strip() for line in log.strip().splitlines()][-_LOG_TAIL_LINES:]
    errors = [line for line in lines if re.search(r"(?i)\berror\b|\bfatal\b|panic|cannot|could not|denied", line)]
    return (errors or lines or [""])[-1]


def find_cause(status: int | None, log: str, folder: Path) -> str | None:
    """Return the cause and the remedy, or None if the cause is unknown."""
    tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
    for pattern, explain in _FAILURE_CAUSES:
        if (found := re.search(pattern, tail)) is not None:
            return explain(found, folder)
    if status == -signal.SIGKILL:
        return (
            f"the service was killed, probably because the system ran out of memory ({describe_memory()}): "
            "close other programs, or raise the memory limit"
        )
    return None


def describe_memory() -> str:
    """Describe the available memory, for an error message."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        found = None
    return "available memory unknown" if found is None else f"{int(found[1]) * 1024 // _MIB} MiB available"


def find_closed_folder(path: Path) -> Path | None:
    """Return the first folder on the path that other users cannot enter, or None."""
    for folder in reversed((path, *path.parents)):
        try:
            if folder.is_dir() and not folder.stat().st_mode & 0o001:
                return folder
        except OSError:
            return folder
    return None


def _permission_remedy(folder: Path) -> str:
    closed = find_closed_folder(folder)
    if closed is None:
        return f"permission denied below {folder}: check the owner and mode of the file named in the error"
    return f"the service cannot enter {closed}: run `chmod o+x {closed}`, or use a folder that all users can enter"
