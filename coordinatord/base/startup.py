"""Retry while the services that the daemon depends on are still starting."""

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
    """Retries at boot with one time limit for all services, because a machine may start all services at once."""

    def __init__(self, timeout_s: float, first_pause_s: float = _FIRST_RETRY_PAUSE_S) -> None:
        self._until = anyio.current_time() + timeout_s
        self._first_pause_s = first_pause_s

    async def retry_until_ready(self, service: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that raises no Retryable. Raise the last error after the time limit.

        `service` is the name of the awaited service in the log.
        """

        def report(error: Exception) -> None:
            log.warning(f"waiting for {service}", reason=str(error))

        return await retry(
            attempt,
            on=Retryable,
            first_wait_s=self._first_pause_s,
            max_wait_s=_MAX_RETRY_PAUSE_S,
            deadline=lambda: self._until,
            report=report,
        )
