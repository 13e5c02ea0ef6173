"""Results of a benchmark, and fair timing of alternatives."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeVar

import attrs

T = TypeVar("T")
Absolute = Literal["CPU", "clock"]


FEWEST: Final = 3  # samples; fewer have no spread


@attrs.frozen
class Row:
    """One measured figure and its limit. Benchmarks create rows with `Row.of`.

    `ratio` is `value` divided by that of `against`, both measured in the same run. `holds` says whether it reaches
    `target`, or stays at or below it. `n` is the number of samples. `low` and `high` are the quartiles of their ratios.
    `absolute` names the scale of a limit that was set on another machine (see machine.py). `limit` is its value there,
    and `most` says whether the ratio must stay at or below its target.
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
    absolute: Absolute | None = None
    limit: float = 0
    most: bool = False

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
        absolute: Absolute | None = None,
        by: Callable[[Sequence[float]], float] = statistics.median,
    ) -> "Row":
        """Make a row from samples over `limit`: one value for all, or one per sample from the same turn."""
        if len(samples) < FEWEST:
            raise ValueError(f"{name}: {len(samples)} samples, and a row takes {FEWEST} at least")
        limits = [limit] * len(samples) if isinstance(limit, int | float) else limit
        ratios = [sample / one for sample, one in zip(samples, limits, strict=True)]
        if absolute and len(set(limits)) > 1:
            raise ValueError(f"{name}: an absolute limit is one, and not one of each turn")
        if not all(map(math.isfinite, ratios)):
            raise ValueError(f"{name}: every ratio must be a number, and they are {ratios}")
        ratio = by(ratios)
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        if target is not None and at_most is None:
            goal, holds = target, ratio >= target
        elif at_most is not None and target is None:
            goal, holds = at_most, ratio <= at_most
        else:
            raise ValueError(f"{name}: a row has either a target or a most")
        spread = (len(samples), low, high)
        scaled = (absolute, limits[0] if absolute else 0, at_most is not None)
        return cls(name, by(samples), unit, against, ratio, goal, holds, *spread, *scaled)

    def here(self, slower: float, said: str) -> "Row":
        """Scale an absolute row for a machine that takes `slower` times as long as the targets' machine. Times may be
        longer and rates lower. `said` gives the reason, appended to the limit."""
        if not self.absolute:
            return self
        times = 1 / slower if self.most else slower
        ratio = self.ratio * times
        return attrs.evolve(
            self,
            against=f"{self.against} ({_figure(self.limit / times)} {self.unit} here: {said})",
            ratio=ratio,
            holds=ratio <= self.target if self.most else ratio >= self.target,
            low=self.low * times,
            high=self.high * times,
        )


@attrs.frozen
class Turns:
    """Results of each candidate in each turn, in units per second. `rates[name]` is a candidate's median."""

    taken: dict[str, list[float]]

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.taken[name])

    def ratios(self, ours: str, other: str) -> list[float]:
        """Return ratios turn by turn, so that changes of the machine's speed affect both sides."""
        return [mine / theirs for mine, theirs in zip(self.taken[ours], self.taken[other], strict=True)]

    def row(self, name: str, ours: str, other: str, against: str, *, target: float, unit: str, scale: float = 1) -> Row:
        """Compare `ours` with `other` turn by turn. `scale` is the number of rates per unit."""
        mine, theirs = ([rate / scale for rate in self.taken[each]] for each in (ours, other))
        return Row.of(name, mine, unit, against, theirs, target=target)


def parts(values: Sequence[T], many: int) -> list[Sequence[T]]:
    """Slices of about the same length, in the order that the values have."""
    return [values[len(values) * at // many : len(values) * (at + 1) // many] for at in range(many)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    lines = [("what", "value", "unit", "× against", "quartiles", "n", "target", "", "against")]
    lines += [
        (
            row.name,
            _figure(row.value),
            row.unit,
            f"{row.ratio:.2f}",
            f"{row.low:.2f}–{row.high:.2f}",
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


def interleaved(candidates: dict[str, Callable[[], int]], rounds: int) -> Turns:
    """Return the rates of each candidate, in units per second.

    A candidate does one portion of work and returns its number of units (bytes, operations). Candidates run in turn,
    forwards and then backwards. An uncounted first round warms caches. Existing objects are frozen from garbage
    collection, because they belong to other benchmarks.
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
