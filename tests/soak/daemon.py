"""A process of the soaked market that can be killed and restarted during the run."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs

from devnet import child
from devnet.child import Child, Program

_READY_SECONDS: Final = 90.0  # a coordinator waits up to 60 for its node


@attrs.define(eq=False)
class Daemon:
    """`deaths` counts unexpected exits. Each is a defect."""

    program: Program
    ready: Callable[[], Awaitable[bool]]
    process: Child | None = None
    deaths: list[int] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int | None:
        return None if self.process is None or self.process.process.returncode is not None else self.process.pid

    async def start(self) -> None:
        self.process = await child.start_program(self.program)

    async def until_ready(self) -> None:
        assert self.process is not None
        await self.process.wait_until(self.ready, seconds=_READY_SECONDS)

    async def kill(self) -> None:
        """Kill the daemon like a power cut, without any cleanup."""
        if (process := self._taken()) is not None:
            await process.kill()

    async def stop(self) -> int:
        """Stop it like an operator. Return the exit status."""
        if (process := self._taken()) is None:
            return 0
        await process.stop()
        return int(process.process.returncode or 0)

    def _taken(self) -> Child | None:
        """Return the process, and stop watching it."""
        process, self.process = self.process, None
        return process

    async def watch(self) -> None:
        """Record every unexpected exit, and restart the daemon like systemd."""
        while True:
            process = self.process
            if process is not None and process.process.returncode is not None:
                self.deaths.append(process.process.returncode)
                await self.start()
            await anyio.sleep(0.2)
