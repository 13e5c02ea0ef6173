"""What a benchmark yields, and how alternatives are timed fairly against each other."""

import gc
import statistics
import time
from collections.abc import Callable

import attrs


@attrs.frozen
class Row:
    """One measured figure beside the limit that it is held against.

    `ratio` is `value` over the rate named by `against`, both taken in the same interleaved run; `holds` says
    whether it reaches `target`.
    """

    name: str
    value: float
    unit: str
    against: str
    ratio: float
    target: float
    holds: bool


def interleaved(candidates: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """The median rate of each candidate, in units per second.

    A candidate does one portion of its work and returns how many units (bytes, operations) that was. The
    candidates run in turn, forwards and then backwards, so that a machine that slows down or speeds up
    meanwhile does so for all of them. One round before the first is not counted: it warms caches. What was in memory
    before is not collected again and again: it is other benchmarks'.
    """
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for turn in range(rounds + 1):
        for name in order if turn % 2 else reversed(order):
            started = time.perf_counter()
            units = candidates[name]()
            elapsed = time.perf_counter() - started
            if turn:
                rates[name].append(units / elapsed)
    gc.unfreeze()
    return {name: statistics.median(taken) for name, taken in rates.items()}
