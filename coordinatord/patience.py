"""Waiting, at boot, for what is still starting: a machine that comes up starts everything at once."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import structlog

from coordinatord.trouble import Retryable

log = structlog.get_logger(__name__)

T = TypeVar("T")
_PAUSE: Final = 1.0  # seconds between attempts


class Patience:
    """`seconds` for all that is waited for together."""

    def __init__(self, seconds: float, pause: float = _PAUSE) -> None:
        self._until = anyio.current_time() + seconds
        self._pause = pause

    async def until(self, there: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns once it raises no `Retryable` any more; that of the attempt at which patience ended
        is raised. `there` is what is waited for, in the log's words."""
        while True:
            try:
                return await attempt()
            except Retryable as trouble:
                if anyio.current_time() >= self._until:
                    raise
                log.warning(f"waiting for {there}", reason=trouble.message)
            await anyio.sleep(self._pause)
