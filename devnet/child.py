"""A service of the local world: one process, tethered to this one, with its log in a file."""

import os
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
from devnet.failure_causes import available_memory, cause_of, telling_line

_POLL_SECONDS: Final = 0.02
_WITHOUT_PROXIES: Final = {"no_proxy": "*", "NO_PROXY": "*"}  # its programs speak to this machine alone


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
            env={**os.environ, **_WITHOUT_PROXIES, **program.environment},
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
