"""Run the devnet's services as child processes, which log to files and end when their parent ends."""

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
from devnet.failure_causes import describe_memory, find_cause, find_error_line

_READY_POLL_INTERVAL_S: Final = 0.02
_WITHOUT_PROXIES: Final = {"no_proxy": "*", "NO_PROXY": "*"}  # all traffic is on loopback


@attrs.frozen
class Program:
    """Command of a service, with its log, environment and signals."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # extends os.environ; may hold secrets
    run_as: str = "-"  # user of the child; see devnet.parent_watch
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel when this process dies
    stop_seconds: float = 10  # SIGKILL follows the stop signal after this time


@attrs.frozen
class Child:
    program: Program
    process: anyio.abc.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def raise_when_ended(self) -> NoReturn:
        """Wait until the process ends, then raise `DevnetError`. In a task group, the error stops the devnet."""
        await self.process.wait()
        raise self._ended_error("ended unexpectedly")

    async def wait_for_success(self) -> None:
        """Wait until the program ends. Raise `DevnetError` if it failed."""
        if await self.process.wait() != 0:
            raise self._ended_error("failed")

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
        """Wait until `ready` returns True. Raise `DevnetError` if the process ends first or takes too long."""
        with anyio.move_on_after(seconds):
            while True:
                if self.process.returncode is not None:
                    raise self._ended_error("ended while starting")
                if await ready():
                    return
                await anyio.sleep(_READY_POLL_INTERVAL_S)
        line = find_error_line(self.read_log())
        last = line and f" (last error: {line})"
        raise DevnetError(
            f"{self.program.name} was not ready after {seconds:g} s{last}. The machine may be busy or short of memory "
            f"({describe_memory()}): try again, and see {self.program.log}"
        )

    async def stop(self) -> None:
        """Stop the process with its stop signal, then with SIGKILL. Cancellation does not interrupt this method."""
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

    def _ended_error(self, event: str) -> DevnetError:
        status, log = self.process.returncode, self.read_log()
        line, cause = find_error_line(log), find_cause(status, log, self.program.log.parent.parent)
        because = "" if cause is None else f". Cause: {cause}"
        return DevnetError(
            f"{self.program.name} {event} (status {status}){line and f': {line}'}{because} (log: {self.program.log})"
        )


async def start_program(program: Program) -> Child:
    """Start `program`. The caller must stop the program. If this process dies first, parent_watch.py stops the program.

    Call this function in a thread that outlives the program (devnet.parent_watch explains why).
    """
    watched = (
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
            [*watched, *program.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_WITHOUT_PROXIES, **program.environment},
            start_new_session=True,  # Ctrl-C must not reach the services, which stop in order
        )
    return Child(program, process)


@asynccontextmanager
async def run_program(program: Program) -> AsyncIterator[Child]:
    child = await start_program(program)
    try:
        yield child
    finally:
        await child.stop()
