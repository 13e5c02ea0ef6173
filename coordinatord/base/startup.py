"""Retries at boot, while other services are still starting."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import structlog

from coordinatord.base.errors import Retryable

log = structlog.get_logger(__name__)

T = TypeVar("T")
_PAUSE: Final = 1.0  # seconds between attempts


class StartupPatience:
    """Retries at boot, of whatever is still starting: a machine that comes up starts everything at once. `seconds`: for
    all attempts together."""

    def __init__(self, seconds: float, pause: float = _PAUSE) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def retry_until_ready(self, there: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Result of the first attempt that raises no `Retryable`. Raises that of the last attempt when time is over.
        `there`: what is waited for, in the log's words."""
        while True:
            try:
                return await attempt()
            except Retryable as error:
                if anyio.current_time() >= self._until:
                    raise
                log.warning(f"waiting for {there}", reason=error.message)
            await anyio.sleep(self._pause)
