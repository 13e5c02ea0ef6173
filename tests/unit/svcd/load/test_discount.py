import pytest

from svcd.backends.discount import AskRates, Discount
from svcd.base import metrics


def idle_for(seconds: float, **settings: float) -> Discount:
    discount = Discount("m", 40, **settings)
    discount.observe(0, 0)
    discount.observe(0, seconds)
    return discount


@pytest.mark.parametrize(("seconds", "percent"), [(0, 0), (150, 10), (600, 40), (10_000, 40)])
def test_it_grows_while_idle_up_to_the_configured_floor(seconds: float, percent: int) -> None:
    assert idle_for(seconds).percent == percent


@pytest.mark.parametrize(("load", "percent"), [(0.2, 30), (0.4, 20), (0.8, 0), (1, 0)])
def test_it_falls_at_once_with_the_load(load: float, percent: int) -> None:
    discount = idle_for(600)
    discount.observe(load, 601)
    assert discount.percent == percent


def test_after_a_busy_moment_it_grows_from_nothing_again() -> None:
    discount = idle_for(600)
    discount.observe(1, 601)
    discount.observe(0, 616)
    assert discount.percent == 1


def test_no_configured_floor_is_no_discount() -> None:
    discount = Discount("m", 0)
    discount.observe(0, 0)
    discount.observe(0, 1e6)
    assert discount.lowest_rates(AskRates(100, 200)) == AskRates(100, 200)


def test_floor_is_rounded_up_to_whole_units() -> None:
    assert idle_for(150).lowest_rates(AskRates(11, 2**127 + 1)) == AskRates(10, (2**127 + 1) * 9 // 10 + 1)


def test_the_metric_is_there_from_the_start_and_follows() -> None:
    discount = Discount("shown", 40)
    shown = metrics.bid_floor_discount.labels("shown")
    assert shown._value.get() == 0
    discount.observe(0, 0)
    discount.observe(0, 300)
    assert shown._value.get() == 20
