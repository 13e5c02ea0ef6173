"""Estimate of the coordinator's time from its answers.

The coordinator's clock judges orders, cancellations and sessions, and the local clock may be wrong. The `date` of the
last answer corrects it. A correction of more than a quarter of an hour is ignored, because a false date could make the
client sign payments that stay valid far into the future.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

MAX_SKEW_SECONDS: Final = 900.0


@attrs.define
class ServerClock:
    """Clock of the coordinator. `skew` is its time minus ours at its last answer, even if ignored."""

    local: Callable[[], float] = time.time
    skew: float = 0.0

    def observe(self, date: float) -> None:
        """Note the date of an answer that has just begun to arrive, in Unix seconds."""
        # The header is rounded down and slightly old, so this clock is late rather than early. An order may then
        # end a second early, but never later than the coordinator allows.
        self.skew = date - self.local()

    @property
    def believed(self) -> bool:
        return abs(self.skew) <= MAX_SKEW_SECONDS

    def now(self) -> int:
        return int(self.local() + (self.skew if self.believed else 0.0))
