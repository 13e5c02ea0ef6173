"""The store's time, read from the `date` header of its answers."""

from email.utils import formatdate

import pytest

from coordinatord.storage.pins.requests import StoreClock

NOW = 1_800_000_000.0


def dated(seconds: float) -> dict[str, str]:
    return {"date": formatdate(seconds, usegmt=True)}


@pytest.mark.parametrize(
    "date",
    ["soon", "", "Thu, 01 Jan 1970 00:00:00 +99999999999999", f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT"],
)
def test_bad_dates_are_ignored(date: str) -> None:
    clock = StoreClock(lambda: NOW)
    assert not clock.compare({"date": date})
    clock.compare_if_due({"date": date})
    assert clock.now() == NOW


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0, 86_400.0])
def test_clock_follows_the_store_s(ahead: float) -> None:
    clock = StoreClock(lambda: NOW)
    assert clock.compare(dated(NOW - ahead))
    assert abs(clock.now() - (NOW - ahead)) <= 1
    assert not clock.compare(dated(NOW - ahead + 5)), "it is known already"


def test_clock_that_is_set_right_needs_no_correction() -> None:
    local = [NOW]
    clock = StoreClock(lambda: local[0])
    clock.compare_if_due(dated(NOW - 3600))
    local[0] = NOW - 3600 + 100
    clock.compare_if_due(dated(local[0]))
    assert clock.now() == local[0]


def test_small_difference_and_cached_answer_correct_nothing() -> None:
    clock = StoreClock(lambda: NOW)
    assert not clock.compare(dated(NOW - 30))
    assert not clock.compare({**dated(NOW - 3600), "age": "3600"})
    assert clock.now() == NOW
