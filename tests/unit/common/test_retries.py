"""Retries of the daemons: when they wait, how long, and when they give up."""

from collections.abc import Awaitable

import pytest
import trio
from trio.testing import MockClock

from common.daemon.retries import retry

pytestmark = pytest.mark.trio


class Busy(Exception):
    pass


class Failing:
    """Raises these errors in turn, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_waits_double_up_to_the_longest(autojump_clock: MockClock) -> None:
    call, reported = Failing(*[Busy(str(n)) for n in range(5)]), []
    assert await retry(call, on=Busy, first_wait_s=1, max_wait_s=5, report=reported.append) == "done"
    assert call.times == [0.0, 1.0, 3.0, 7.0, 12.0, 17.0]
    assert [str(error) for error in reported] == ["0", "1", "2", "3", "4"]


async def test_last_error_is_raised_if_the_next_try_is_late(autojump_clock: MockClock) -> None:
    call = Failing(*[Busy(str(n)) for n in range(5)])
    with pytest.raises(Busy, match="2"):
        await retry(call, on=Busy, first_wait_s=1, max_wait_s=5, deadline=lambda: 7.0)
    assert call.times == [0.0, 1.0, 3.0]


async def test_other_error_is_raised_at_once(autojump_clock: MockClock) -> None:
    call = Failing(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await retry(call, on=Busy, first_wait_s=1, max_wait_s=5)
    assert call.times == [0.0]


async def test_function_that_returns_an_awaitable_is_retried(autojump_clock: MockClock) -> None:
    call = Failing(Busy("0"))

    def attempt() -> Awaitable[str]:
        return call()

    assert await retry(attempt, on=Busy, max_wait_s=5) == "done"
    assert call.times == [0.0, 1.0]
