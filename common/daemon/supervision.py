"""Supervision of background tasks: log, count and restart a task that fails.

    supervisor = Supervisor(count_failures, log_task_failure)
    tasks.start_soon(supervisor.run, "indexer", index)

    running ──raises──► waiting (backoff with jitter, at most 30 s) ──► running again
       └──returns, is cancelled, or raises Fatal──► ended

`failing_task` names a task that has failed ten times in a row. The supervisor still restarts such a task. A minute
without a failure resets the count.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import attrs
import tenacity

from common.daemon.process import Fatal

FAILING_AFTER_FAILURES: Final = 10
HEALTHY_AFTER_S: Final = 60.0
MAX_BACKOFF_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.2

T = TypeVar("T")
TaskFunction = Callable[[], Awaitable[object]]


class StrayCancellation(Exception):
    """Error for a cancellation that a task raised although the daemon did not cancel the task."""


@attrs.define(eq=False)
class Supervisor:
    """Run the background tasks of one process.

    `count_failures(task, count)` adds to the metric of failures. A call with 0 at the start of a task creates the
    metric. `log_failure(task, failures_in_a_row, error)` logs one failure.
    """

    count_failures: Callable[[str, int], object]
    log_failure: Callable[[str, int, BaseException], object]
    _streaks: list["_FailureStreak"] = attrs.field(factory=list)

    @property
    def failing_task(self) -> str | None:
        """Name of a task that has failed ten times in a row, or None."""
        return next((streak.task for streak in self._streaks if streak.is_failing), None)

    async def run(self, task: str, loop: Callable[[], Awaitable[T]]) -> T:
        """Run `loop` until it returns, is cancelled or raises Fatal. Restart the loop after any other exception."""
        streak = _FailureStreak(task)
        self._streaks.append(streak)
        self.count_failures(task, 0)

        def record_attempt(state: tenacity.RetryCallState) -> None:
            if state.outcome is not None and (error := state.outcome.exception()) is not None:
                self._record_failure(streak, error)
            state.attempt_number = streak.failures  # tenacity computes the backoff from this number

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, Exception) and not _is_fatal(error)),
            after=record_attempt,
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_BACKOFF_S, max=MAX_BACKOFF_S),
            sleep=anyio.sleep,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, streak, loop)
        finally:
            self._streaks.remove(streak)

    async def run_once(self, task: str, work: TaskFunction) -> None:
        """Run `work` once. Log and count any exception but Fatal, then return without a restart."""
        streak = _FailureStreak(task)
        try:
            await self._attempt(streak, work)
        except Exception as error:
            if _is_fatal(error):
                raise
            self._record_failure(streak, error)

    async def _attempt(self, streak: "_FailureStreak", loop: Callable[[], Awaitable[T]]) -> T:
        """Run `loop` once. Raise an Exception for a failure, or the cancellation if the daemon cancelled the task.

        A cancellation that a library leaked counts as a failure.
        """
        streak.running_since = anyio.current_time()
        try:
            return await loop()
        except Exception:
            raise
        except BaseException as error:
            failures = error.subgroup(Exception) if isinstance(error, BaseExceptionGroup) else None
            if failures is not None and _is_fatal(failures):
                raise failures from None
            try:
                await anyio.lowlevel.checkpoint()
            except BaseException:  # the daemon cancelled the task
                if failures is not None:
                    self._record_failure(streak, failures)
                raise
            # The daemon did not cancel the task: a library leaked an internal cancellation.
            raise failures or StrayCancellation from error

    def _record_failure(self, streak: "_FailureStreak", error: BaseException) -> None:
        streak.add()
        self.count_failures(streak.task, 1)
        with suppress(Exception):  # a failed log write, e.g. on a full disk, must not end the task
            self.log_failure(streak.task, streak.failures, error)


@attrs.define(eq=False)
class _FailureStreak:
    """Consecutive failures of one task. A minute without a failure ends the streak."""

    task: str
    failures: int = 0
    running_since: float | None = None  # None during a backoff

    def add(self) -> None:
        self.failures = 1 if self._has_recovered else self.failures + 1
        self.running_since = None

    @property
    def is_failing(self) -> bool:
        return self.failures >= FAILING_AFTER_FAILURES and not self._has_recovered

    @property
    def _has_recovered(self) -> bool:
        return self.running_since is not None and anyio.current_time() - self.running_since >= HEALTHY_AFTER_S


def _is_fatal(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Fatal) is not None
    return isinstance(error, Fatal)
