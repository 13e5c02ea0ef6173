"""Retries with backoff, until a call succeeds, cannot succeed, or the job's time is up."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import tenacity
import trio

from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

_JITTER_SHARE: Final = 0.25  # spreads the retries of jobs that failed together


@attrs.frozen(slots=True)
class TryAgain(Exception):
    """Raised by an attempt when another one may succeed. `after` is the server's Retry-After in seconds."""

    detail: str
    after: float | None = None

    def __str__(self) -> str:
        return self.detail


@attrs.define(slots=True)
class Signs:
    """Signs of life from the backend. Silence until the deadline counts as a fault; long work does not."""

    of_life: bool = False


@attrs.frozen(slots=True)
class Attempts:
    max_attempts: int
    backoff_s: float
    max_backoff_s: float

    async def run(self, work: ModelWork, attempt: Callable[[Signs], Awaitable[WorkOutput]]) -> WorkOutput:
        """Return the first output, retrying after each `TryAgain`.

        Raise `WorkFailed` at once if an attempt does, if no attempt is left (`backend_exhausted`) or if the next wait
        would end past the deadline (`deadline_wait`).
        """
        signs = Signs()
        retry = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=self._wait,
            stop=lambda state: state.attempt_number >= self.max_attempts or _ends_late(state, work),
            before_sleep=lambda _: metrics.backend_retries.labels(work.model).inc(),
            sleep=trio.sleep,
            reraise=True,
        )

        async def run_once() -> WorkOutput:  # tenacity awaits the results of coroutine functions only
            return await attempt(signs)

        with trio.move_on_at(work.deadline):
            try:
                return await retry(run_once)
            except TryAgain as last:
                if retry.statistics["attempt_number"] >= self.max_attempts:
                    raise WorkFailed(
                        "backend_exhausted", f"{self.max_attempts} attempts, the last one: {last}", True
                    ) from None
                raise WorkFailed("deadline_wait", f"{last}; a wait would end past the deadline", True) from None
        number = retry.statistics["attempt_number"]
        # A first attempt with signs of life is only long. Otherwise the backend is at fault.
        fault = number > 1 or not signs.of_life
        raise WorkFailed("deadline_wait", f"attempt {number} was under way at the deadline", fault)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, TryAgain) and error.after is not None:
            return error.after
        jitter = _JITTER_SHARE * self.backoff_s
        wait = tenacity.wait_exponential_jitter(multiplier=self.backoff_s, max=self.max_backoff_s, jitter=jitter)
        return wait(state)


def _ends_late(state: tenacity.RetryCallState, work: ModelWork) -> bool:
    return trio.current_time() + state.upcoming_sleep >= work.deadline
