"""A service of the local world: one process, tethered to this one, with its log in a file."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

import anyio
import anyio.abc
import attrs

from devnet import parent_watch
from devnet.errors import DevnetError

# Causes of a service's failure, read from its exit status and its last lines, each with its remedy.
#
# What a program says when it fails is the symptom, in words for its own developers. A person at a terminal needs the
# folder, the port, the memory or the library that is at fault, and what to do.

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


_POLL_SECONDS: Final = 0.02


@attrs.frozen
class Program:
    """What to run, and how to end it."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # atop ours; may hold secrets
    run_as: str = "-"  # see devnet.parent_watch
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel when this process dies
    stop_seconds: float = 10  # from the stop signal until it is killed


@attrs.frozen
class Child:
    program: Program
    process: anyio.abc.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def fail_when_it_ends(self) -> NoReturn:
        """For a supervisor's task: raises `DevnetError` if the process ends, for whatever reason."""
        await self.process.wait()
        raise self._ended("ended by itself")

    async def succeed(self) -> None:
        """Wait for a program that is meant to end, and raise `DevnetError` if it failed."""
        if await self.process.wait() != 0:
            raise self._ended("failed")

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
        """Returns once `ready` answers true; `DevnetError` when the process ends first or takes too long."""
        with anyio.move_on_after(seconds):
            while True:
                if self.process.returncode is not None:
                    raise self._ended("ended while starting")
                if await ready():
                    return
                await anyio.sleep(_POLL_SECONDS)
        line = telling_line(self.said())
        last = line and f"; it said last: {line}"
        raise DevnetError(
            f"{self.program.name} was not ready in {seconds:g} s{last}. The machine may be too busy, or short "
            f"of memory ({available_memory()}): try again, and see {self.program.log}"
        )

    async def stop(self) -> None:
        """End the process: asked first, then killed. Not to be cancelled half-way."""
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                with suppress(ProcessLookupError):
                    self.process.send_signal(self.program.stop_signal)
                with anyio.move_on_after(self.program.stop_seconds):
                    await self.process.wait()
            await self.kill()

    async def kill(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads its own group: nothing below it stays
        await self.process.wait()

    def said(self) -> str:
        """All of its log."""
        return self.program.log.read_text(errors="replace")

    def _ended(self, how: str) -> DevnetError:
        status, said = self.process.returncode, self.said()
        line, cause = telling_line(said), cause_of(status, said, self.program.log.parent.parent)
        because = "" if cause is None else f". The cause: {cause}"
        return DevnetError(
            f"{self.program.name} {how} (status {status}){line and f': {line}'}{because} (log: {self.program.log})"
        )


async def start(program: Program) -> Child:
    """Start `program`. The caller stops it; if this process dies first, parent_watch.py stops it.

    To be called in a thread that outlives the child: see devnet.parent_watch.
    """
    tethered = (
        sys.executable,
        "-I",
        "-S",
        parent_watch.__file__,
        str(os.getpid()),
        str(int(program.death_signal)),
        program.run_as,
    )
    with program.log.open("ab") as log:
        process = await anyio.open_process(
            [*tethered, *program.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **program.environment},
            start_new_session=True,  # Ctrl-C is for us, who end the services in order
        )
    return Child(program, process)


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[Child]:
    child = await start(program)
    try:
        yield child
    finally:
        await child.stop()
