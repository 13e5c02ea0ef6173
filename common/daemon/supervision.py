"""Supervision of background tasks: log, count and restart a task that fails.

    supervisor = Supervisor(count_failures, log_task_failure)
    tasks.start_soon(supervisor.run, "indexer", index)

    running ──raises──► waiting (backoff with jitter, at most 30 s) ──► running again
       └──returns, is cancelled, or raises Fatal──► ended

`failing` names a task that has failed ten times in a row. The supervisor still restarts such a task. A minute without a
failure resets the count.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import attrs
import tenacity

from common.daemon.process import Fatal

FAILURES_IN_A_ROW: Final = 10
HEALTHY_AFTER_S: Final = 60.0
MAX_BACKOFF_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.2

T = TypeVar("T")
Loop = Callable[[], Awaitable[object]]


class StrayCancellation(Exception):
    """A task raised a cancellation although the daemon did not cancel the task."""


@attrs.define(eq=False)
class Supervisor:
    """Run the background tasks of one process.

    `count_failures` receives the name of a task and the number of failures to add. It receives 0 when the task starts,
    so that the metric exists from then on. `log_failure` receives the name, the failures in a row and the error.
    """

    count_failures: Callable[[str, int], object]
    log_failure: Callable[[str, int, BaseException], object]
    _rows: list["_FailureRow"] = attrs.field(factory=list)

    @property
    def failing(self) -> str | None:
        """Name of a task that has failed ten times in a row, or None."""
        return next((row.task for row in self._rows if row.is_long), None)

    async def run(self, task: str, loop: Callable[[], Awaitable[T]]) -> T:
        """Run `loop` until it returns, is cancelled or raises Fatal. Restart it after any other exception."""
        row = _FailureRow(task)
        self._rows.append(row)
        self.count_failures(task, 0)

        def failed(state: tenacity.RetryCallState) -> None:
            if state.outcome is not None and (error := state.outcome.exception()) is not None:
                self._failed(row, error)
            state.attempt_number = row.failures  # tenacity computes the backoff from it

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, Exception) and not _is_fatal(error)),
            after=failed,
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_BACKOFF_S, max=MAX_BACKOFF_S),
            sleep=anyio.sleep,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, row, loop)
        finally:
            self._rows.remove(row)

    async def run_once(self, task: str, work: Loop) -> None:
        """Run `work`, which must not be repeated. Report any exception but Fatal, and return."""
        row = _FailureRow(task)
        try:
            await self._attempt(row, work)
        except Exception as error:
            if _is_fatal(error):
                raise
            self._failed(row, error)

    async def _attempt(self, row: "_FailureRow", loop: Callable[[], Awaitable[T]]) -> T:
        """Run `loop` once. Raise an Exception if the loop failed, and any other exception if the task must end."""
        row.running_since = anyio.current_time()
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
                    self._failed(row, failures)
                raise
            # The daemon did not cancel the task: a library leaked an internal cancellation.
            raise failures or StrayCancellation from error

    def _failed(self, row: "_FailureRow", error: BaseException) -> None:
        row.add()
        self.count_failures(row.task, 1)
        with suppress(Exception):  # a failed log write, e.g. on a full disk, must not end the task
            self.log_failure(row.task, row.failures, error)


@attrs.define(eq=False)
class _FailureRow:
    """Failures of one task, each within a minute of the restart before it."""

    task: str
    failures: int = 0
    running_since: float | None = None  # None during a backoff

    def add(self) -> None:
        self.failures = 1 if self._is_over else self.failures + 1
        self.running_since = None

    @property
    def is_long(self) -> bool:
        return self.failures >= FAILURES_IN_A_ROW and not self._is_over

    @property
    def _is_over(self) -> bool:
        return self.running_since is not None and anyio.current_time() - self.running_since >= HEALTHY_AFTER_S


def _is_fatal(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Fatal) is not None
    return isinstance(error, Fatal)
