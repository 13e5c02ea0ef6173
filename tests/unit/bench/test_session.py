"""A figure that misses its target is measured again, and a failing measurement does not stop the others."""

import io
from collections.abc import Callable

import pytest

from tests.bench.row import Row
from tests.bench.session import Session


def rows(*values: float) -> list[Row]:
    return [Row.of(f"row {n}", [value] * 3, "times", "1", 1, target=1) for n, value in enumerate(values)]


def benchmark(*runs: list[Row]) -> Callable[[], list[Row]]:
    left = iter(runs)
    return lambda: next(left)


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([rows(1, 2)], [1, 2]),
        ([rows(0.9, 2), rows(1.5, 3)], [1.5, 2]),
        ([rows(0.9, 2), rows(1.5, 0.5)], [1.5, 2]),  # a row that met its target keeps its first value
        ([rows(0.9, 2), rows(0.8, 3)], [0.8, 2]),
    ],
    ids=["holds", "misses once", "another misses then", "misses twice"],
)
def test_missed_target_is_measured_again(runs: list[list[Row]], told: list[float]) -> None:
    session = Session(io.StringIO())
    session.measure("some", benchmark(*runs))
    assert [row.value for row in session.rows] == told
    assert [one.name for one in session.how] == ["some", "some, again"][: len(runs)]


def test_failing_benchmark_is_reported_and_the_next_runs() -> None:
    def breaks() -> list[Row]:
        raise RuntimeError("no such node")

    terminal = io.StringIO()
    session = Session(terminal)
    session.measure("one", breaks)
    session.measure("other", benchmark(rows(1)))
    assert (session.broken, [row.value for row in session.rows]) == (["one"], [1])
    assert "no such node" in terminal.getvalue()
