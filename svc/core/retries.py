"""Retry policy of requests.

After an error status, only the header `x-svc-retryable` allows a retry, never the type or status of the error.
Submissions, uploads and batch creation are not retried after an error status. If no answer arrives, the client repeats
a read. It repeats a submission or a batch creation only if a look-up shows that the first attempt did not arrive.
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
    """Limit of retries, and the pauses between them. `after_proxy`: also retry when a proxy answered 502 to 504."""

    max_retries: int = 3
    jitter: Callable[[float, float], float] = random.uniform
    after_proxy: bool = False

    def pause(self, attempt: int) -> float:
        """Return the seconds before retry `attempt`, counted from 0: 0.5·2^attempt, at most 10, plus jitter."""
        return min(_MAX_RETRY_PAUSE_S, 0.5 * 2.0 ** min(attempt, 8)) + self.jitter(0.0, 0.25)
