"""trio as a guest of the simulated loop. Tasks on trio use the same clock and the same seed.

Other guest modes of trio wait for sockets in a thread. This simulation has no sockets. When no trio task is ready, trio
waits until its next deadline, or until the loop sets an event of trio.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any
from unittest.mock import patch

import outcome
import trio
from trio._core import _run as trio_run
from trio.abc import Clock

from tests.simulation.coordinator.loop import SimulatedLoop


class _LoopClock(Clock):
    """The loop's time. `rests_until` is the last requested deadline."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.rests_until = 0.0

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self.rests_until = deadline
        return deadline - self._loop.time()


class Guest:
    """One run of trio."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._clock = _LoopClock(loop)
        self._context = Context()  # owned by no coordinator's life
        self._resting: Callable[[Any], None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[Any] = loop.create_future()

    @contextmanager
    def running(self, main: Callable[[], Awaitable[object]]) -> Iterator[None]:
        """Start `main`. Inside the block, `ended` is set when `main` has ended."""
        with (
            patch.object(trio_run, "start_thread_soon", self._rest),
            patch.object(trio_run.TheIOManager, "force_wakeup", lambda _: self._wake()),
        ):
            self._context.run(
                trio.lowlevel.start_guest_run,
                main,
                run_sync_soon_threadsafe=self._soon,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
                clock=self._clock,
            )
            yield

    async def ended(self) -> None:
        """Raise the exception of `main`, if any."""
        await asyncio.wait({self._ended})
        self._ended.result()

    def task(self, act: Any) -> "asyncio.Task[Any]":
        """Schedule a callback of trio in the loop, owned by no process."""
        return self._loop.create_task(act, context=Context())

    def _soon(self, step: Callable[[], object]) -> None:
        self._loop.call_soon(step, context=self._context)

    def _done(self, how: Any) -> None:
        if isinstance(how, outcome.Error):
            self._ended.set_exception(how.error)
        else:
            self._ended.set_result(None)

    def _rest(self, _: Callable[[], Any], deliver: Callable[[Any], None]) -> None:
        """Replaces trio's thread that waits for sockets."""
        self._resting = deliver
        if self._clock.rests_until != float("inf"):
            self._alarm = self._loop.call_at(self._clock.rests_until, self._wake, context=self._context)

    def _wake(self) -> None:
        deliver, self._resting = self._resting, None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if deliver is not None:
            deliver(outcome.Value([]))


async def heard(guest: Guest, act: Awaitable[Any]) -> Any:
    """Run `act` in the loop, and return its result to the calling trio task. Cancelling that task cancels `act`."""
    done = trio.Event()
    task = guest.task(act)
    task.add_done_callback(lambda _: done.set())
    try:
        await done.wait()
    except trio.Cancelled:
        if not task.cancel() and not task.cancelled():
            task.exception()  # mark the exception as retrieved, because no task reads it
        raise
    return task.result()
