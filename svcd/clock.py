"""Wall-clock time, which signatures and the chain go by, beside the event loop's, which deadlines here go by."""

import time
from collections.abc import Callable

import attrs
import trio


@attrs.frozen(slots=True)
class Clock:
    wall: Callable[[], float] = time.time

    def now(self) -> int:
        """Unix seconds, for `issued_at`."""
        return int(self.wall())

    def in_loop_time(self, unix_seconds: float) -> float:
        """The moment on the clock of `trio.current_time()`. A wall clock that is set later does not move it."""
        return trio.current_time() + (unix_seconds - self.wall())
