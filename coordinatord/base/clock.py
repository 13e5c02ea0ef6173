"""Time windows of signed messages, by this machine's clock."""

import time
from collections.abc import Callable
from typing import Final

from common.wire import limits

Clock = Callable[[], float]  # Unix seconds

ISSUED_WITHIN: Final = limits.ISSUED_WITHIN
AHEAD_AT_MOST: Final = limits.AHEAD_AT_MOST
ORDER_LIFE: Final = limits.ORDER_LIFE

system_clock: Clock = time.time


def is_fresh(issued_at: int, now: float) -> bool:
    """True when a claim, settle, fail, cancel or release was signed within the ±600 seconds that the chain allows."""
    return abs(issued_at - now) <= ISSUED_WITHIN


def is_too_far_ahead(signed_at: int, now: float) -> bool:
    return signed_at > now + AHEAD_AT_MOST
