"""This machine's clock, limits on the signing times of messages, and dates in HTTP headers."""

import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from common.api import limits

# Function that returns the time in Unix seconds.
Clock = Callable[[], float]

MAX_OP_SKEW_S: Final = limits.MAX_OP_SKEW_S
MAX_SIGNED_AHEAD_S: Final = limits.MAX_SIGNED_AHEAD_S
MAX_ORDER_LIFETIME_S: Final = limits.MAX_ORDER_LIFETIME_S

system_clock: Clock = time.time


def is_fresh(issued_at: int, now: float) -> bool:
    """Return True if an op or release was signed within the ±600 seconds that the chain allows."""
    return abs(issued_at - now) <= MAX_OP_SKEW_S


def is_too_far_ahead(signed_at: int, now: float) -> bool:
    """Return True if a signing time is more than MAX_SIGNED_AHEAD_S ahead of this clock."""
    return signed_at > now + MAX_SIGNED_AHEAD_S


def read_http_date(text: str | None) -> float | None:
    """Return the Unix seconds of a `Date` or `Retry-After` header, or None if the header is missing or not a valid
    date."""
    try:
        at = parsedate_to_datetime(text) if text is not None else None
        if at is None:
            return None
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    # A time zone or year out of range raises OverflowError.
    except (ValueError, OverflowError):
        return None
