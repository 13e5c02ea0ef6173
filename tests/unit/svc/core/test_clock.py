from email.utils import formatdate

import pytest

from svc.core.clock import ServerClock

HERE = 1_700_000_000.9


@pytest.mark.parametrize("ahead", [0, 300, -300, 899, -899])
def test_coordinators_time_is_taken_from_its_answers_and_never_led(ahead: int) -> None:
    clock = ServerClock(local=lambda: HERE)
    clock.heard(formatdate(int(HERE) + ahead, usegmt=True))
    assert clock.now() == int(HERE) + ahead


def test_difference_is_told_even_where_it_is_not_believed() -> None:
    clock = ServerClock(local=lambda: HERE)
    clock.heard(formatdate(HERE + 7200, usegmt=True))
    assert (round(clock.skew), clock.believed) == (7199, False)


@pytest.mark.parametrize(
    "said", [None, "", "yesterday", f"Mon, 01 Jan {10**20} 00:00:00 GMT", formatdate(HERE + 100_000, usegmt=True)]
)
def test_time_that_is_missing_malformed_or_far_off_is_not_believed(said: str | None) -> None:
    clock = ServerClock(local=lambda: HERE)
    clock.heard(said)
    assert clock.now() == int(HERE)
