import pytest

from svc.core.clock import ServerClock

HERE = 1_700_000_000.9


@pytest.mark.parametrize("ahead", [0, 300, -300, 899, -899])
def test_coordinator_time_comes_from_its_answers(ahead: int) -> None:
    clock = ServerClock(local_clock=lambda: HERE)
    clock.observe(int(HERE) + ahead)
    assert clock.now() == int(HERE) + ahead


def test_difference_is_told_even_where_it_is_not_believed() -> None:
    clock = ServerClock(local_clock=lambda: HERE)
    clock.observe(int(HERE) + 7200)
    assert (round(clock.skew_s), clock.is_skew_plausible) == (7199, False)


def test_time_that_is_far_off_is_not_believed() -> None:
    clock = ServerClock(local_clock=lambda: HERE)
    clock.observe(HERE + 100_000)
    assert clock.now() == int(HERE)
