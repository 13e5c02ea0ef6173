"""Prices over time: lowest, median and highest of each interval. The interval depends on the time span."""

import pytest

from coordinatord.api.pages.pages_sql import PaidRates, RateRange, group_into_buckets

DAY = 86_400


def test_interval_has_lowest_median_and_highest_price() -> None:
    width, points = group_into_buckets(
        [PaidRates(at, rate, 2 * rate) for at, rate in ((0, 5), (10, 9), (20, 6), (299, 7), (300, 1))]
    )
    assert width == 300
    assert [(point.since, point.jobs) for point in points] == [(0, 4), (300, 1)]
    assert points[0].rate_in == RateRange(5, 6, 9)
    assert points[0].rate_out == RateRange(10, 12, 18)


@pytest.mark.parametrize(
    ("span", "width"),
    [(0, 300), (8 * 3600 - 1, 300), (8 * 3600, 900), (DAY, 3600), (30 * DAY, DAY), (9999 * DAY, 7 * DAY)],
)
def test_stretches_grow_with_the_time_that_they_span(span: int, width: int) -> None:
    assert group_into_buckets([PaidRates(1_800_000_000, 1, 1), PaidRates(1_800_000_000 + span, 1, 1)])[0] == width


def test_rates_beyond_what_floats_hold_stay_whole() -> None:
    rate = 2**128 - 1
    assert group_into_buckets([PaidRates(0, rate, rate)])[1][0].rate_in == RateRange(rate, rate, rate)


def test_no_jobs_are_no_stretches() -> None:
    assert group_into_buckets([])[1] == []
