"""Retries at boot, while other services are still starting."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import structlog

from common.daemon.retries import retry
from coordinatord.base.errors import Retryable

log = structlog.get_logger(__name__)

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 5.0


class StartupRetry:
    """Retries at boot, when a machine starts all services at once. `seconds` limits all attempts together."""

    def __init__(self, seconds: float, pause: float = _FIRST_PAUSE_S) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def retry_until_ready(self, there: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that raises no Retryable. Raise the last error when the time is over.

        `there` is the service's name in the log.
        """

        def report(error: Exception) -> None:
            log.warning(f"waiting for {there}", reason=str(error))

        return await retry(
            attempt,
            on=Retryable,
            first_s=self._pause,
            max_s=_MAX_PAUSE_S,
            until=lambda: self._until,
            report=report,
        )
