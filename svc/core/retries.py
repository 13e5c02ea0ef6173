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


@attrs.frozen(slots=True)
class RetryPolicy:
    """`most` retries beyond the first attempt."""

    most: int = 3
    jitter: Callable[[float, float], float] = random.uniform

    def pause(self, attempt: int) -> float:
        """Seconds before retry number `attempt`, counted from 0: 0.5·2^attempt + uniform(0, 0.25)."""
        return 0.5 * 2.0**attempt + self.jitter(0.0, 0.25)
