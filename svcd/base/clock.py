"""Estimate the coordinator's clock for signatures, and convert Unix time to loop time for deadlines."""

import time
from collections.abc import Callable
from typing import Final

import attrs
import trio

MAX_SKEW_S: Final = 900.0

# Do not correct a smaller skew, because a `date` header has whole seconds and arrives late.
_NEGLIGIBLE_SKEW_S: Final = 5.0

# A larger change of the skew means that one of the clocks was set, so correct the local time by the new skew.
_MIN_CLOCK_JUMP_S: Final = 60.0


@attrs.define(slots=True, eq=False)
class Clock:
    """Coordinator's time, estimated from the `date` header of its responses.

    The coordinator compares `issued_at` of ops with its own clock, and this machine's clock may be minutes off. A skew
    above `MAX_SKEW_S` is not corrected, because a signature dated far into the future could be used later.
    """

    local_clock: Callable[[], float] = time.time
    skew_s: float = 0.0  # this machine's clock minus the coordinator's clock, measured at the last response
    _uses_coordinator_time: bool = True

    def observe(self, date: float) -> None:
        """Update the estimate from a response's `date` in Unix seconds. Call this as soon as the response arrives."""
        skew_s = self.local_clock() - (date + 0.5)
        if abs(skew_s - self.skew_s) > _MIN_CLOCK_JUMP_S:
            self._uses_coordinator_time = True
        self.skew_s = skew_s

    def switch_time_source(self) -> None:
        """Switch between corrected and local time after a rejected `issued_at`, because either clock may be wrong."""
        self._uses_coordinator_time = not self._uses_coordinator_time

    @property
    def is_skew_plausible(self) -> bool:
        return abs(self.skew_s) <= MAX_SKEW_S

    def unix_time(self) -> float:
        """Return the corrected time in Unix seconds."""
        corrects = self._uses_coordinator_time and _NEGLIGIBLE_SKEW_S < abs(self.skew_s) <= MAX_SKEW_S
        return self.local_clock() - (self.skew_s if corrects else 0.0)

    def now(self) -> int:
        """Return the time for `issued_at`, in whole Unix seconds."""
        return int(self.unix_time())

    def to_loop_time(self, unix_seconds: float) -> float:
        """Convert Unix seconds to loop time, which later changes of the wall clock do not affect."""
        return trio.current_time() + (unix_seconds - self.unix_time())
