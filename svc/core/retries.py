"""Retries: when a request is repeated, and how long the client waits before.

Only the coordinator's header decides, never the error's type or status. Submissions, uploads and batch creation are not
repeated after an error status. If there was no answer, a read is repeated at once, and a write only after its state was
looked up.
"""

import random
from collections.abc import Callable
from typing import Final

import attrs

GATEWAY_ATTEMPTS: Final = 8
GATEWAY_PAUSE_S: Final = 1.5
_MAX_PAUSE_S: Final = 10.0


@attrs.frozen(slots=True)
class RetryPolicy:
    """Retry at most `max_retries` times. `after_proxy`: also retry when a proxy answered 502 to 504."""

    max_retries: int = 3
    jitter: Callable[[float, float], float] = random.uniform
    after_proxy: bool = False

    def pause(self, attempt: int) -> float:
        """Return the seconds before retry number `attempt`, counted from 0: 0.5·2^attempt, capped, and up to 0.25."""
        return min(_MAX_PAUSE_S, 0.5 * 2.0 ** min(attempt, 8)) + self.jitter(0.0, 0.25)
