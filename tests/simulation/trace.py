"""The trace of a simulated run."""

import hashlib
from collections.abc import Callable


class Trace:
    """All events in order. The same seed gives the same digest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self._hash = hashlib.sha256()
        self._clock = clock

    def add(self, what: str) -> None:
        line = f"{self._clock():.6f} {what}"
        self.lines.append(line)
        self._hash.update(line.encode() + b"\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]
