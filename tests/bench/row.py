"""What a benchmark yields, and how alternatives are timed fairly against each other."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen
class Row:
    """One measured figure beside the limit that it is held against.

    `ratio` is `value` over what `against` names, both taken in the same interleaved run; `holds` says whether it
    reaches `target`. `n`: how often both were measured; `low` and `high`: the quartiles of their ratio.
    """

    name: str
    value: float
    unit: str
    against: str
    ratio: float
    target: float
    holds: bool
    n: int = 1
    low: float | None = None
    high: float | None = None


@attrs.frozen
class Turns:
    """What each candidate did in each turn, in units per second. `rates[name]` is a candidate's median."""

    taken: dict[str, list[float]]

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.taken[name])

    def ratios(self, ours: str, other: str) -> list[float]:
        """Turn by turn, so that a machine that slows down or speeds up meanwhile does so for both."""
        return [mine / theirs for mine, theirs in zip(self.taken[ours], self.taken[other], strict=True)]

    def row(self, name: str, ours: str, other: str, against: str, *, target: float, unit: str, scale: float = 1) -> Row:
        """`ours` beside `other`, with the median of their ratios; `scale`: rates a unit."""
        ratios = self.ratios(ours, other)
        return row_of_ratios(name, self[ours] / scale, against, ratios, target=target, unit=unit)


def row_of_ratios(name: str, value: float, against: str, ratios: Sequence[float], *, target: float, unit: str) -> Row:
    """The median of some ratios, which is to be `target` at least."""
    low, ratio, high = quartiles(ratios)
    return Row(name, value, unit, against, ratio, target, ratio >= target, len(ratios), low, high)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def interleaved(candidates: dict[str, Callable[[], int]], rounds: int) -> Turns:
    """The rates of each candidate, in units per second.

    A candidate does one portion of its work and returns how many units (bytes, operations) that was. The
    candidates run in turn, forwards and then backwards. One round before the first is not counted: it warms caches.
    What was in memory before is not collected again and again: it is other benchmarks'.
    """
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name in in_turn(candidates, turn):
            started = time.perf_counter()
            units = candidates[name]()
            elapsed = time.perf_counter() - started
            if turn:
                rates[name].append(units / elapsed)
    gc.unfreeze()
    return Turns(rates)


def in_turn(names: Iterable[T], turn: int) -> Iterable[T]:
    """Forwards, and every other time backwards."""
    order = list(names)
    return order if turn % 2 else reversed(order)
