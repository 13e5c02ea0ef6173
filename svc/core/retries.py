"""When a request is made again, and after how long.

What decides is the coordinator's header, never type or status; submissions, uploads and batch creation are not made
again on any error status. An answer that did not come is another matter: reading again is harmless, and writing
again is so only once the state was read back.
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
