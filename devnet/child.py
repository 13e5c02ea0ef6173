"""Run a service of the devnet: one child process that ends with its parent and logs to a file."""

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
from devnet.failure_causes import available_memory, find_cause, find_error_line

_POLL_SECONDS: Final = 0.02
_WITHOUT_PROXIES: Final = {"no_proxy": "*", "NO_PROXY": "*"}  # all traffic is on loopback


@attrs.frozen
class Program:
    """Command of a service, and how to stop it."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # added to this process's; may hold secrets
    run_as: str = "-"  # see devnet.parent_watch
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel when this process dies
    stop_seconds: float = 10  # from the stop signal to SIGKILL


@attrs.frozen
class Child:
    program: Program
    process: anyio.abc.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def fail_when_it_ends(self) -> NoReturn:
        """Wait until the process ends, then raise `DevnetError`. Run as a supervising task."""
        await self.process.wait()
        raise self._ended("ended unexpectedly")

    async def succeed(self) -> None:
        """Wait until the program ends. Raises `DevnetError` if it failed."""
        if await self.process.wait() != 0:
            raise self._ended("failed")

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
        """Wait until `ready` returns True. Raises `DevnetError` if the process ends first or takes too long."""
        with anyio.move_on_after(seconds):
            while True:
                if self.process.returncode is not None:
                    raise self._ended("ended while starting")
                if await ready():
                    return
                await anyio.sleep(_POLL_SECONDS)
        line = find_error_line(self.read_log())
        last = line and f" (last error: {line})"
        raise DevnetError(
            f"{self.program.name} was not ready after {seconds:g} s{last}. The machine may be busy or short of memory "
            f"({available_memory()}): try again, and see {self.program.log}"
        )

    async def stop(self) -> None:
        """Stop the process with its stop signal, then with SIGKILL. Shielded from cancellation."""
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
                os.killpg(self.pid, signal.SIGKILL)  # kills its descendants as well
        await self.process.wait()

    def read_log(self) -> str:
        return self.program.log.read_text(errors="replace")

    def _ended(self, how: str) -> DevnetError:
        status, log = self.process.returncode, self.read_log()
        line, cause = find_error_line(log), find_cause(status, log, self.program.log.parent.parent)
        because = "" if cause is None else f". Cause: {cause}"
        return DevnetError(
            f"{self.program.name} {how} (status {status}){line and f': {line}'}{because} (log: {self.program.log})"
        )


async def start(program: Program) -> Child:
    """Start `program`. The caller stops it. If this process dies first, parent_watch.py stops it.

    Call this in a thread that outlives the child (see devnet.parent_watch).
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
            start_new_session=True,  # Ctrl-C must not reach the services, which stop in order
        )
    return Child(program, process)


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[Child]:
    child = await start(program)
    try:
        yield child
    finally:
        await child.stop()
