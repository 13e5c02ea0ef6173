"""Limit of the bytes that the owner of a tab may send per second."""

from typing import Final

import attrs
import trio

_BURST_BYTES: Final = 4 * 2**20
_BYTES_PER_SECOND: Final = 2 * 2**20
_FRAME_COST_BYTES: Final = 1024  # for reading a message and checking a signature


@attrs.define(slots=True)
class ByteRateLimiter:
    """Token bucket of one tab. A token is a byte."""

    _tokens: float = _BURST_BYTES
    _refilled_at: float = attrs.field(factory=trio.current_time)

    async def spend(self, frame_bytes: int) -> None:
        """Count a frame. If the owner exceeds the limit, wait until the limit allows the frame."""
        now = trio.current_time()
        self._tokens = min(_BURST_BYTES, self._tokens + (now - self._refilled_at) * _BYTES_PER_SECOND)
        self._refilled_at = now
        self._tokens -= frame_bytes + _FRAME_COST_BYTES
        if self._tokens < 0:
            await trio.sleep(-self._tokens / _BYTES_PER_SECOND)
