import math
from functools import partial
from statistics import harmonic_mean

import pytest

from tests.bench.row import MIN_TURNS, Row, Turns, interleaved


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0]], ids=len)
def test_fewer_than_three_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=f"reads: {len(samples)} samples, expected at least 3"):
        Row.of("reads", samples, "reads/s", "hello", 1, target=1)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_figure_that_is_no_number_is_refused(odd: float) -> None:
    with pytest.raises(ValueError, match="reads: every ratio must be a number"):
        Row.of("reads", [1, 2, odd], "reads/s", "hello", 1, at_most=1)


@pytest.mark.parametrize("goals", [{}, {"target": 1.0, "at_most": 1.0}], ids=["none", "both"])
def test_a_row_has_either_a_target_or_a_most(goals: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give either target or at_most"):
        Row.of("reads", [1, 2, 3], "reads/s", "hello", 1, **goals)


def test_limit_per_turn_has_one_turn_per_sample() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Row.of("reads", [1, 2, 3], "reads/s", "hello", [1, 2], target=1)


def test_value_ratio_and_quartiles_are_those_of_the_samples() -> None:
    row = Row.of("reads", [50, 10, 30, 20, 40], "reads/s", "hello", 100, target=0.3)
    assert row == Row("reads", 30, "reads/s", "hello", 0.3, 0.3, True, 5, 0.2, 0.4)


def test_limit_per_turn_uses_the_median_ratio() -> None:
    rates = Turns({"ours": [100.0, 400.0, 90.0], "other": [200.0, 500.0, 100.0]})
    row = rates.row("reads", "ours", "other", "hello", target=0.85, unit="kreads/s", scale=1000)
    assert (row.value, row.ratio, row.holds, row.n) == (0.1, 0.8, False, 3)
    assert (row.low, row.high) == (0.65, pytest.approx(0.85))


@pytest.mark.parametrize(("limit", "holds"), [(3, True), (2.9, False)])
def test_at_most_includes_the_limit(limit: float, holds: bool) -> None:
    assert Row.of("memory", [3, 3, 3], "MiB", "a limit", limit, at_most=1).holds is holds


def test_a_peak_is_held_by_the_largest_sample() -> None:
    row = Row.of("peak", [1, 1, 1, 5], "MiB", "2 MiB", 2, at_most=1, by=max)
    assert (row.value, row.ratio, row.holds, row.n) == (5, 2.5, False, 4)


def test_the_rate_of_a_whole_run_comes_out_of_equal_slices() -> None:
    row = Row.of("sent", [100 / 1, 100 / 4, 100 / 5], "/s", "10/s", 10, target=1, by=harmonic_mean)
    assert (row.value, row.ratio) == (pytest.approx(30), pytest.approx(3))


def test_candidates_take_turns_and_the_first_turn_does_not_count() -> None:
    now, order = 0.0, list[str]()

    def candidate(name: str, seconds: float) -> int:
        nonlocal now
        now += seconds
        order.append(name)
        return 10

    candidates = {"fast": partial(candidate, "fast", 0.5), "slow": partial(candidate, "slow", 1.0)}
    turns = interleaved(candidates, seconds=0, turn_s=1.0, clock=lambda: now)
    assert turns.taken == {"fast": [20.0] * MIN_TURNS, "slow": [10.0] * MIN_TURNS}
    assert order[:6] == ["slow", "fast", "fast", "fast", "fast", "slow"]
