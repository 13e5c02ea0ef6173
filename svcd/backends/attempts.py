"""Retries with growing pauses, until a call succeeds, cannot succeed, or the job's time is up."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

# Jobs that fail together would otherwise come back together. It guards nothing; the system's source is merely at hand.
_JITTER: Final = random.SystemRandom()
_JITTER_SHARE: Final = 0.25


@attrs.frozen(slots=True)
class TryAgain(Exception):
    """An attempt failed where another may succeed. `after`: seconds that the server asked to be left alone."""

    detail: str
    after: float | None = None

    def __str__(self) -> str:
        return self.detail


@attrs.define(slots=True)
class Signs:
    """An attempt that hears from its backend says so here: silence until the deadline is a fault, long work is none."""

    of_life: bool = False


@attrs.frozen(slots=True)
class Attempts:
    most: int
    backoff_seconds: float
    longest_backoff_seconds: float

    async def run(self, work: ModelWork, attempt: Callable[[Signs], Awaitable[WorkOutput]]) -> WorkOutput:
        """The first output. `WorkFailed` of an attempt ends it at once; `TryAgain` is followed by a wait and another
        attempt while there is one left (`backend_exhausted`) and time for it (`deadline_wait`)."""
        error: TryAgain | None = None
        signs = Signs()
        for number in range(1, self.most + 1):
            with trio.move_on_at(work.deadline):
                try:
                    return await attempt(signs)
                except TryAgain as failed:
                    error = failed
                    if number == self.most:
                        break
                    wait = self._wait(number, failed)
            if trio.current_time() >= work.deadline:
                # An attempt may be merely long. After a failure, or without any sign, the backend is not well.
                fault = error is not None or not signs.of_life
                raise WorkFailed("deadline_wait", f"attempt {number} was under way at the deadline", fault)
            if trio.current_time() + wait >= work.deadline:
                raise WorkFailed("deadline_wait", f"{error}; {wait:.1f} s more would end past the deadline", True)
            metrics.backend_retries.labels(work.model).inc()
            await trio.sleep(wait)
        raise WorkFailed("backend_exhausted", f"{self.most} attempts, the last one: {error}", True)

    def _wait(self, number: int, failed: TryAgain) -> float:
        if failed.after is not None:
            return failed.after
        wait = min(self.backoff_seconds * float(2 ** (number - 1)), self.longest_backoff_seconds)
        return wait * (1 + _JITTER.random() * _JITTER_SHARE)
