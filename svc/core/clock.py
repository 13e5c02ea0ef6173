"""Estimate the coordinator's time from the `date` header of its answers.

The coordinator checks orders, cancellations and sessions against its own clock, and the local clock may be wrong. So
the last answer's date corrects the local time. A correction of more than 15 minutes is ignored, because a
false date could make the client sign payments that stay valid far into the future.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

MAX_SKEW_S: Final = 900.0


@attrs.define
class ServerClock:
    """Clock of the coordinator. `skew_s`: the coordinator's time minus the local time at the last answer."""

    local_clock: Callable[[], float] = time.time
    skew_s: float = 0.0

    def observe(self, date: float) -> None:
        """Record the date of an answer in Unix seconds. Call this as soon as the answer's headers have arrived."""
        # The header is rounded down to seconds and arrives late, so this clock is slow rather than fast. An order may
        # then expire a second early, but never later than the coordinator allows.
        self.skew_s = date - self.local_clock()

    @property
    def is_skew_plausible(self) -> bool:
        return abs(self.skew_s) <= MAX_SKEW_S

    def now(self) -> int:
        return int(self.local_clock() + (self.skew_s if self.is_skew_plausible else 0.0))
