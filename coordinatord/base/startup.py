"""Retry at boot while other services are still starting."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import structlog

from common.daemon.retries import retry
from coordinatord.base.errors import Retryable

log = structlog.get_logger(__name__)

T = TypeVar("T")
_FIRST_RETRY_PAUSE_S: Final = 1.0
_MAX_RETRY_PAUSE_S: Final = 5.0


class StartupRetry:
    """Retries at boot within one time limit for all services, because a machine may start all of them at once."""

    def __init__(self, seconds: float, pause: float = _FIRST_RETRY_PAUSE_S) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def retry_until_ready(self, service: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that raises no Retryable. Raise the last error when the time limit has
        passed.

        `service` is the name of the awaited service in the log.
        """

        def report(error: Exception) -> None:
            log.warning(f"waiting for {service}", reason=str(error))

        return await retry(
            attempt,
            on=Retryable,
            first_wait_s=self._pause,
            max_wait_s=_MAX_RETRY_PAUSE_S,
            deadline=lambda: self._until,
            report=report,
        )
