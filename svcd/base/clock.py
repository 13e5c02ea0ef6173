"""Wall-clock time, which signatures and the chain use, beside the event loop's clock, which deadlines use here."""

import time
from collections.abc import Callable
from typing import Final

import attrs
import trio

MOST_SKEW: Final = 900.0
# A header has whole seconds, and is as old as its way here: below this the machine's own clock is the better one.
_TRIFLE: Final = 5.0
_SET: Final = 60.0  # one of the two clocks was set: what was known of them is known no longer


@attrs.define(slots=True, eq=False)
class Clock:
    """The coordinator's time, as far as the `date` of its answers tells it: ops are judged by it, and a machine's clock
    may be off by minutes. A correction of more than a quarter of an hour is not believed: whoever could make us sign
    far into the future could keep ops for later."""

    local: Callable[[], float] = time.time
    ahead: float = 0.0  # this machine's clock less the coordinator's, by its last answer
    _is_corrected: bool = True

    def heard(self, date: float) -> None:
        """`date`: that of an answer that has just begun to arrive, in Unix seconds."""
        ahead = self.local() - (date + 0.5)
        if abs(ahead - self.ahead) > _SET:
            self._is_corrected = True
        self.ahead = ahead

    def was_stale(self) -> None:
        """The chain called a time of ours stale: of two clocks that differ the other is right then. The coordinator's
        may be wrong as well as this machine's."""
        self._is_corrected = not self._is_corrected

    @property
    def is_believed(self) -> bool:
        return abs(self.ahead) <= MOST_SKEW

    def wall(self) -> float:
        """Unix seconds, corrected."""
        return self.local() - (self.ahead if self._is_corrected and _TRIFLE < abs(self.ahead) <= MOST_SKEW else 0.0)

    def now(self) -> int:
        """Unix seconds, for `issued_at`."""
        return int(self.wall())

    def in_loop_time(self, unix_seconds: float) -> float:
        """The moment on the clock of `trio.current_time()`. A wall clock that is set later does not move it."""
        return trio.current_time() + (unix_seconds - self.wall())
