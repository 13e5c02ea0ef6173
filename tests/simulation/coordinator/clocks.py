"""Process clocks that a simulation can replace. Import this before coordinatord, because its defaults
(`clock=time.monotonic`) bind the function at import."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

START: Final = 2_000_000_000.0  # wall time at the start of a simulation, later than any chain's
real_monotonic: Final = time.monotonic

_virtual: Callable[[], float] | None = None


def _taken_over(real: Callable[[], float], offset: float) -> Callable[[], float]:
    def clock() -> float:
        return real() if _virtual is None else offset + _virtual()

    return clock


# Start with a long uptime. Some caches treat values that were never read as stale at time 0.
_UP: Final = 100_000.0
for _name, _offset in (("time", START), ("monotonic", _UP), ("perf_counter", _UP)):
    setattr(time, _name, _taken_over(getattr(time, _name), _offset))


@contextmanager
def clocks_of(virtual: Callable[[], float]) -> Iterator[None]:
    """Inside, every clock of the process returns `virtual`, in seconds from 0."""
    global _virtual  # noqa: PLW0603 - what it stands in for is one of the process, too
    _virtual = virtual
    try:
        yield
    finally:
        _virtual = None
