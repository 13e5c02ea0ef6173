"""Retry policy of requests.

A read is retried if no answer arrives, or if the error has the header `x-svc-retryable: true`. A submission, upload or
batch creation is not retried after an error status. If no answer arrives, a submission or batch creation is retried
only after a look-up shows that the first attempt did not arrive.
"""

import random
from collections.abc import Callable
from typing import Final

import attrs

MAX_GATEWAY_ATTEMPTS: Final = 8
GATEWAY_RETRY_PAUSE_S: Final = 1.5
_MAX_RETRY_PAUSE_S: Final = 10.0


@attrs.frozen(slots=True)
class RetryPolicy:
    """Limit of retries, and the pauses between them. `after_proxy`: also retry if a proxy answered 502, 503 or 504."""

    max_retries: int = 3
    jitter: Callable[[float, float], float] = random.uniform
    after_proxy: bool = False

    def pause(self, attempt: int) -> float:
        """Return the seconds before retry `attempt`, counted from 0: 0.5·2^attempt, at most 10, plus jitter."""
        return min(_MAX_RETRY_PAUSE_S, 0.5 * 2.0 ** min(attempt, 8)) + self.jitter(0.0, 0.25)
