"""The coordinator's time, as far as it can be told from its answers.

Orders, cancellations and sessions are judged by the coordinator's clock, and a client's clock may be wrong by
minutes. Every answer carries a `date`; the last one corrects ours. A correction of more than a quarter of an hour
is not believed: whoever could make us sign far into the future could hold a payment open.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

MOST_SKEW: Final = 900.0


@attrs.define
class ServerClock:
    """`skew` is the coordinator's time less ours as its last answer had it, believed or not."""

    local: Callable[[], float] = time.time
    skew: float = 0.0

    def heard(self, date: float) -> None:
        """Note the date of an answer that has just begun to arrive, in Unix seconds."""
        # The header has whole seconds and is as old as its way here, so this clock lags rather than leads: an order may
        # end a second early, but never later than the coordinator accepts it.
        self.skew = date - self.local()

    @property
    def believed(self) -> bool:
        return abs(self.skew) <= MOST_SKEW

    def now(self) -> int:
        return int(self.local() + (self.skew if self.believed else 0.0))
