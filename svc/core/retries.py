"""Retries: when a request is repeated, and after how long.

The coordinator's header decides, never the type or the status. Submissions, uploads and batch creation are not repeated
after any error status. When no answer came, a read is repeated at once, and a write only after its state was read
back.
"""

import random
from collections.abc import Callable
from typing import Final

import attrs

GATEWAY_ATTEMPTS: Final = 8
GATEWAY_PAUSE: Final = 1.5


_MAX_PAUSE: Final = 10.0


@attrs.frozen(slots=True)
class RetryPolicy:
    """`most` retries beyond the first attempt. `after_proxy`: retry when a proxy answered 502, 503 or 504, too."""

    most: int = 3
    jitter: Callable[[float, float], float] = random.uniform
    after_proxy: bool = False

    def pause(self, attempt: int) -> float:
        """Return the seconds before retry number `attempt`, counted from 0: 0.5·2^attempt, capped, and up to 0.25."""
        return min(_MAX_PAUSE, 0.5 * 2.0 ** min(attempt, 8)) + self.jitter(0.0, 0.25)
