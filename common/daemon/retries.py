"""Retry a call with exponential backoff (tenacity on anyio)."""

import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import tenacity

DEFAULT_FIRST_WAIT_S: Final = 1.0

T = TypeVar("T")


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    first_wait_s: float = DEFAULT_FIRST_WAIT_S,
    max_wait_s: float,
    deadline: Callable[[], float] = lambda: math.inf,
    report: Callable[[Exception], object] = lambda _: None,
) -> T:
    """Repeat `call` while it raises `on`. Return the result of `call`, or raise the last error after the deadline.

    The wait before the first retry is `first_wait_s`. The wait doubles with each retry, up to `max_wait_s`. No attempt
    starts after `deadline()`, in the event loop's time. `report` receives the error of each attempt that will be
    retried.
    """

    def is_past_deadline(state: tenacity.RetryCallState) -> bool:
        return anyio.current_time() + state.upcoming_sleep >= deadline()

    def report_retry(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, Exception):
            report(error)

    async def run_once() -> T:  # tenacity awaits only coroutine functions, and `call` may be another callable
        return await call()

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(on),
        wait=tenacity.wait_exponential(first_wait_s, max=max_wait_s),
        stop=is_past_deadline,
        before_sleep=report_retry,
        sleep=anyio.sleep,
        reraise=True,
    )
    return await retrying(run_once)
