"""Clocks of the process that a simulation can take over. To be imported before coordinatord: its defaults
(`clock=time.monotonic`) keep the function that they found when they were read."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

START: Final = 2_000_000_000.0  # the wall's time when a simulation begins: later than any chain that it finds
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
    """Inside, every clock of the process goes by `virtual`, in seconds from 0 on."""
    global _virtual  # noqa: PLW0603 - what it stands in for is one of the process, too
    _virtual = virtual
    try:
        yield
    finally:
        _virtual = None
