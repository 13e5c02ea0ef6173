"""Wall-clock time for signatures and the chain, converted to loop time for deadlines."""

import time
from collections.abc import Callable
from typing import Final

import attrs
import trio

MAX_SKEW_S: Final = 900.0
# A `date` header has whole seconds and arrives late. Smaller differences are ignored.
_NEGLIGIBLE_S: Final = 5.0
# After a larger jump, one of the clocks was set: correct by the new difference.
_JUMP_S: Final = 60.0


@attrs.define(slots=True, eq=False)
class Clock:
    """Coordinator's time, estimated from the `date` header of its answers.

    Ops are checked against that time, and this machine's clock may be minutes off. Corrections above `MAX_SKEW_S` are
    ignored: signatures dated far into the future could be kept and used later.
    """

    local: Callable[[], float] = time.time
    ahead: float = 0.0  # this machine's clock less the coordinator's, by its last answer
    _is_corrected: bool = True

    def observe(self, date: float) -> None:
        """Update the estimate from the `date` of an answer, in Unix seconds, as soon as it arrives."""
        ahead = self.local() - (date + 0.5)
        if abs(ahead - self.ahead) > _JUMP_S:
            self._is_corrected = True
        self.ahead = ahead

    def was_stale(self) -> None:
        """Switch to the other clock after a stale time: the coordinator's clock may be the wrong one."""
        self._is_corrected = not self._is_corrected

    @property
    def is_believed(self) -> bool:
        return abs(self.ahead) <= MAX_SKEW_S

    def wall(self) -> float:
        """Return the corrected time in Unix seconds."""
        corrects = self._is_corrected and _NEGLIGIBLE_S < abs(self.ahead) <= MAX_SKEW_S
        return self.local() - (self.ahead if corrects else 0.0)

    def now(self) -> int:
        """Return the time for `issued_at`, in whole Unix seconds."""
        return int(self.wall())

    def in_loop_time(self, unix_seconds: float) -> float:
        """Convert Unix seconds to loop time, which later changes of the wall clock do not move."""
        return trio.current_time() + (unix_seconds - self.wall())
