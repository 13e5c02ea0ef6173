"""Lives of one svcd: killed between any two of its steps, and restarted with the surviving disk.

Everything of svcd runs except its command line and its signal handlers.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import patch

import httpx
import trio

from common.daemon.process import Fatal
from svcd.config import DaemonConfig
from svcd.journal import journal
from svcd.stages import sealer, uploader
from svcd.tabs.mailbox import FrameRoutes
from tests.simulation.determinism import AFTER_DISK
from tests.simulation.disk import Disk
from tests.simulation.plan import Kill
from tests.simulation.promises import JournalPromises
from tests.simulation.trace import Trace
from tests.unit.svcd.stages.running import Backend, Started, started

GRACE_S: Final = 60.0
_RESTART_S: Final = 5.0
# Small limits, so that results of all three kinds occur: in the journal, in a file, and uploaded before the settle.
_LONGEST_ROW: Final = 1024
_LONGEST_INLINE: Final = 4096


class Surroundings(Protocol):
    """External services of a daemon. `life` is the number of the current daemon. Requests of earlier daemons are
    dropped."""

    life: int

    @property
    def transport(self) -> httpx.AsyncBaseTransport: ...

    def now(self) -> float: ...


class DaemonLives:
    """Lives of one svcd, one after another. `config` makes the configuration for a state directory."""

    def __init__(
        self,
        around: Surroundings,
        promises: JournalPromises,
        disk: Disk,
        trace: Trace,
        *,
        kills: list[Kill],
        config: Callable[[Path], DaemonConfig],
        backend: Backend,
        chance: random.Random,
        mailbox: FrameRoutes | None = None,
    ) -> None:
        self._around, self._promises, self._disk, self._trace = around, promises, disk, trace
        self._kills, self._config, self._backend, self._chance = deque(kills), config, backend, chance
        self._mailbox = mailbox
        self._steps = 0  # until the next kill
        self._scope: trio.CancelScope | None = None
        self._world: trio.Nursery | None = None
        self._started: Started | None = None
        self._over = False

    @property
    def held(self) -> int:
        """Return the number of used slots, or one while it is not running."""
        return self._started.ground.slots.held_slots if self._started is not None else 1

    async def until_running(self) -> None:
        while self._started is None:  # noqa: ASYNC110 - virtual seconds
            await trio.sleep(1)

    async def live(self) -> None:
        """Run one life after another, until `end`."""
        async with trio.open_nursery() as self._world:
            while not self._over:
                await self._live_once()
            self._world.cancel_scope.cancel()

    def end(self) -> None:
        self._over = True
        if self._scope is not None:
            self._scope.cancel()

    async def _live_once(self) -> None:
        around, life = self._around, self._around.life
        try:
            with trio.CancelScope() as self._scope:
                config = self._config(self._disk.directory)
                running = started(config, around.now, around.transport, self._backend, self._mailbox)
                async with running as self._started:
                    self._disk.opened(self._started.ground.journal._connection)
                    await trio.sleep_forever()
        except* Fatal as refused:
            self._trace.add(f"svcd ends: {refused.exceptions}")
        except* Exception as bug:
            self._promises.breaks(f"svcd fell: {bug.exceptions!r}")
            self._over = True
        self._started = None
        if life == around.life:
            self._ends("kill")
        await trio.sleep(self._chance.uniform(0, _RESTART_S))

    def moment(self, what: str) -> None:
        """Maybe kill the daemon, between any two of its steps."""
        if self._over:
            return
        if what == AFTER_DISK:
            self._promises.stepped()
        if not self._kills or self._scope is None or trio.current_time() < self._kills[0].at:
            return
        if self._steps < self._kills[0].step:
            self._steps += 1
            return
        kill, self._steps = self._kills.popleft(), 0
        self._trace.add(f"{kill.how} at: {what}")
        if kill.how == "stop" and self._started is not None:
            self._started.drain.begin()
            assert self._world is not None
            self._world.start_soon(self._stopped, self._around.life)
        else:
            self._ends(kill.how)
            self._scope.cancel()

    async def _stopped(self, life: int) -> None:
        await trio.sleep(GRACE_S + 1)
        if self._around.life == life and self._scope is not None:
            self._ends("stop")
            self._scope.cancel()

    def _ends(self, how: str) -> None:
        self._disk.survives(power_cut=how == "power cut")
        self._around.life += 1


@contextmanager
def small_rows() -> Iterator[None]:
    with (
        patch.object(journal, "MAX_ROW_BYTES", _LONGEST_ROW),
        patch.object(sealer, "MAX_ROW_BYTES", _LONGEST_ROW),
        patch.object(uploader, "MAX_INLINE_RESULT_BYTES", _LONGEST_INLINE),
    ):
        yield
