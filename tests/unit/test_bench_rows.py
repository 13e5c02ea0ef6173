import pytest

from tests.bench.row import Row, Turns


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0]], ids=len)
def test_fewer_than_three_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=f"reads: {len(samples)} samples, expected at least 3"):
        Row.of("reads", samples, "reads/s", "hello", 1, target=1)


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
