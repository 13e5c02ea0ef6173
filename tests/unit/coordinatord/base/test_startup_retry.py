import pytest

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.base.startup import StartupRetry

pytestmark = pytest.mark.anyio

AWAY = Retryable("not_ready", "not there yet")


class Starting:
    """A service that becomes available after this many attempts."""

    def __init__(self, attempts: int, trouble: Exception = AWAY) -> None:
        self.missing = attempts
        self._trouble = trouble

    async def __call__(self) -> str:
        if self.missing == 0:
            return "there"
        self.missing -= 1
        raise self._trouble


async def test_starting_service_is_waited_for() -> None:
    assert await StartupRetry(60, first_pause_s=0).retry_until_ready("it", Starting(3)) == "there"


async def test_timeout_names_the_missing_service() -> None:
    starting = Starting(2)
    with pytest.raises(Retryable, match="not there yet"):
        await StartupRetry(0, first_pause_s=0).retry_until_ready("it", starting)
    assert starting.missing == 1


async def test_permanently_missing_service_is_not_waited_for() -> None:
    starting = Starting(2, Fatal("another chain"))
    with pytest.raises(Fatal):
        await StartupRetry(60, first_pause_s=0).retry_until_ready("it", starting)
    assert starting.missing == 1
