"""Retry a backend call with backoff, until the call succeeds, cannot succeed, or reaches the job's deadline."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import tenacity
import trio

from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

_JITTER_SHARE: Final = 0.25  # share of the backoff; spreads the retries of jobs that failed together


@attrs.frozen(slots=True)
class TryAgain(Exception):
    """Failed attempt that a retry may fix. `retry_after_s` is the wait that the server requested with Retry-After."""

    detail: str
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.detail


@attrs.define(slots=True)
class BackendActivity:
    """Record of whether the backend reacted to a job. A backend that does not react before the deadline is at fault."""

    has_reacted: bool = False


@attrs.frozen(slots=True)
class AttemptPolicy:
    """Retry policy of a backend."""

    max_attempts: int
    backoff_s: float
    max_backoff_s: float

    async def run(self, work: ModelWork, attempt: Callable[[BackendActivity], Awaitable[WorkOutput]]) -> WorkOutput:
        """Return the output of the first successful attempt. Retry after each `TryAgain`.

        Raise `WorkFailed` with `backend_exhausted` after `max_attempts` failed attempts, or with `deadline_wait` if the
        deadline ends an attempt or comes before the next attempt. A `WorkFailed` from an attempt ends the retries.
        """
        activity = BackendActivity()
        retry = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            wait=self._pause_before_retry,
            stop=lambda state: state.attempt_number >= self.max_attempts or _is_retry_too_late(state, work),
            before_sleep=lambda _: metrics.backend_retries.labels(work.model).inc(),
            sleep=trio.sleep,
            reraise=True,
        )

        async def run_once() -> WorkOutput:  # not a lambda, because tenacity awaits only coroutine functions
            return await attempt(activity)

        with trio.move_on_at(work.deadline):
            try:
                return await retry(run_once)
            except TryAgain as last:
                if retry.statistics["attempt_number"] >= self.max_attempts:
                    raise WorkFailed(
                        "backend_exhausted", f"all {self.max_attempts} attempts failed, the last with: {last}", True
                    ) from None
                raise WorkFailed(
                    "deadline_wait",
                    f"the next retry would start after the deadline; the last attempt failed with: {last}",
                    True,
                ) from None
        number = retry.statistics["attempt_number"]
        # If the first attempt was still running and the backend had reacted, the job only took too long. In every other
        # case the backend is at fault.
        fault = number > 1 or not activity.has_reacted
        raise WorkFailed("deadline_wait", f"attempt {number} was still running at the deadline", fault)

    def _pause_before_retry(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, TryAgain) and error.retry_after_s is not None:
            return error.retry_after_s
        jitter = _JITTER_SHARE * self.backoff_s
        wait = tenacity.wait_exponential_jitter(multiplier=self.backoff_s, max=self.max_backoff_s, jitter=jitter)
        return wait(state)


def _is_retry_too_late(state: tenacity.RetryCallState, work: ModelWork) -> bool:
    return trio.current_time() + state.upcoming_sleep >= work.deadline
