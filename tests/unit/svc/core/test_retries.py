import pytest

from svc.core.retries import RetryPolicy


@pytest.mark.parametrize(("attempt", "least"), [(0, 0.5), (1, 1.0), (2, 2.0)])
def test_pause_doubles_and_is_spread_by_a_quarter_second(attempt: int, least: float) -> None:
    assert RetryPolicy(jitter=lambda low, high: low).pause(attempt) == least
    assert RetryPolicy(jitter=lambda low, high: high).pause(attempt) == least + 0.25


def test_three_retries_unless_told_otherwise() -> None:
    assert RetryPolicy().max_retries == 3
