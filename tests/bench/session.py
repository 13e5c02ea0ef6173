"""One session of benchmarks: each is measured, reported, and measured again if a figure missed its target.

Of a hundred medians with a margin of a few percent some miss by chance, on a machine with shared hypervisor and caches.
The same figure hardly does so twice in a row, while a real slowdown misses both times. A benchmark that crashes is
reported, and the others continue.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import TextIO

import attrs

from tests.bench.machine import Bare, Measured, Spent
from tests.bench.row import Row, table


@attrs.define
class Session:
    terminal: TextIO
    rows: list[Row] = attrs.field(factory=list)
    how: list[Measured] = attrs.field(factory=list)
    """How the machine was meanwhile."""
    broken: list[str] = attrs.field(factory=list)
    _bare: Bare = attrs.field(factory=Bare.now)

    def measure(self, name: str, benchmark: Callable[[], list[Row]]) -> None:
        try:
            rows = self._once(name, benchmark)
            if not all(row.holds for row in rows):
                rows = better(rows, self._once(f"{name}, again", benchmark))
        except Exception:
            traceback.print_exc(file=self.terminal)
            self.broken.append(name)
        else:
            self.rows += rows

    def _once(self, name: str, benchmark: Callable[[], list[Row]]) -> list[Row]:
        print(f"measuring: {name}", file=self.terminal, flush=True)
        before, began = Spent.now(), time.monotonic()
        found = benchmark()
        seconds, after = time.monotonic() - began, Spent.now()
        earlier, self._bare = self._bare, Bare.now()
        self.how.append(Measured.between(name, seconds, earlier.and_then(self._bare), before, after))
        held = [self.how[-1].bare.held(row) for row in found]
        print(f"measured: {self.how[-1]}\n{table(held)}", file=self.terminal, flush=True)
        return held


def better(first: Sequence[Row], again: Sequence[Row]) -> list[Row]:
    """Each row as it held first, else as it was measured again."""
    return [one if one.holds else other for one, other in zip(first, again, strict=True)]
