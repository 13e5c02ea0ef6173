"""Results of a benchmark, and fair timing of alternatives."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

MIN_SAMPLES: Final = 3  # fewer have no spread
MIN_TURNS: Final = 5


@attrs.frozen
class Row:
    """One figure and its floor. Benchmarks create rows with `Row.of`.

    `ratio` is `value` divided by that of `against`. `holds` says whether it reaches `target`, or stays at or below it
    for an upper limit. `n` is the number of samples. `low` and `high` are the quartiles of their ratios.
    """

    name: str
    value: float
    unit: str
    against: str
    ratio: float
    target: float
    holds: bool
    n: int
    low: float
    high: float

    @classmethod
    def of(
        cls,
        name: str,
        samples: Sequence[float],
        unit: str,
        against: str,
        limit: float | Sequence[float],
        *,
        target: float | None = None,
        at_most: float | None = None,
        by: Callable[[Sequence[float]], float] = statistics.median,
    ) -> "Row":
        """Make a row from samples over `limit`: one value for all, or one per sample from the same turn."""
        if len(samples) < MIN_SAMPLES:
            raise ValueError(f"{name}: {len(samples)} samples, expected at least {MIN_SAMPLES}")
        limits = [limit] * len(samples) if isinstance(limit, int | float) else limit
        ratios = [sample / one for sample, one in zip(samples, limits, strict=True)]
        if not all(map(math.isfinite, ratios)):
            raise ValueError(f"{name}: every ratio must be a number: {ratios}")
        ratio = by(ratios)
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        if target is not None and at_most is None:
            goal, holds = target, ratio >= target
        elif at_most is not None and target is None:
            goal, holds = at_most, ratio <= at_most
        else:
            raise ValueError(f"{name}: give either target or at_most")
        return cls(name, by(samples), unit, against, ratio, goal, holds, len(samples), low, high)


@attrs.frozen
class Turns:
    """Units per second of each candidate in each turn. `turns[name]` is a candidate's median."""

    taken: Mapping[str, Sequence[float]]

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.taken[name])

    def ratios(self, ours: str, other: str) -> list[float]:
        """Return ratios turn by turn, so that changes of the machine's speed affect both sides."""
        return [mine / theirs for mine, theirs in zip(self.taken[ours], self.taken[other], strict=True)]

    def row(self, name: str, ours: str, other: str, against: str, *, target: float, unit: str, scale: float = 1) -> Row:
        """Compare `ours` with `other` turn by turn. `scale` is the number of units of a rate in one `unit`."""
        mine, theirs = ([rate / scale for rate in self.taken[each]] for each in (ours, other))
        return Row.of(name, mine, unit, against, theirs, target=target)


def interleaved(
    candidates: Mapping[str, Callable[[], int]],
    seconds: float,
    turn_s: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
) -> Turns:
    """Measure candidates in turn, forwards and then backwards, for about `seconds` in all.

    A candidate does a small portion of work and returns its number of units. In its turn it repeats the portion for
    `turn_s` by this clock, which is `time.process_time` for work of this process alone. A first turn warms caches, and
    does not count. Existing objects are frozen from garbage collection, because they belong to other benchmarks.
    """
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    turn, until = 0, time.perf_counter() + seconds
    while turn <= MIN_TURNS or time.perf_counter() < until:
        for name in list(candidates) if turn % 2 else reversed(list(candidates)):
            rate = _rate(candidates[name], turn_s, clock)
            if turn:
                rates[name].append(rate)
        turn += 1
    gc.unfreeze()
    return Turns(rates)


def _rate(portion: Callable[[], int], turn_s: float, clock: Callable[[], float]) -> float:
    units, started, elapsed = 0, clock(), 0.0
    while elapsed < turn_s:
        units += portion()
        elapsed = clock() - started
    return units / elapsed


def table(rows: Sequence[Row]) -> str:
    lines = [("figure", "value", "unit", "ratio", "quartiles", "n", "floor", "", "against")]
    lines += [
        (
            row.name,
            _figure(row.value),
            row.unit,
            _figure(row.ratio),
            f"{_figure(row.low)}–{_figure(row.high)}",
            f"{row.n}",
            f"{row.target:.3g}",
            "holds" if row.holds else "MISSED",
            row.against,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numbers = {1, 3, 5, 6}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
