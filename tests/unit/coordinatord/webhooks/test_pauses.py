"""When a message is posted again: the schedule, its jitter, and the receiver's Retry-After."""

import pytest

from coordinatord.api.webhooks.delivery import MAX_RETRY_AFTER_S, RETRY_DELAYS_S, read_retry_after, retry_delay_after

NOW = 1_800_000_000.0


def test_schedule_goes_over_a_day_with_a_jitter_and_ends() -> None:
    assert sum(RETRY_DELAYS_S) > 86_400
    for attempts, delay in enumerate(RETRY_DELAYS_S, start=1):
        told = [retry_delay_after(attempts, None) for _ in range(50)]
        assert all(each is not None and delay <= each <= 1.2 * delay for each in told)
        assert len(set(told)) > 1
    assert retry_delay_after(len(RETRY_DELAYS_S) + 1, None) is None
    assert retry_delay_after(len(RETRY_DELAYS_S) + 1, 60.0) is None


def test_receiver_that_asks_for_more_time_gets_it() -> None:
    assert retry_delay_after(1, 600.0) == 600.0
    told = retry_delay_after(3, 1.0)
    assert told is not None
    assert told >= RETRY_DELAYS_S[2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        ("0", 0.0),
        ("999999999", MAX_RETRY_AFTER_S),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("Fri, 15 Jan 2100 08:01:00 GMT", MAX_RETRY_AFTER_S),
        ("-5", None),
        ("1e9", None),
        ("soon", None),
        ("", None),
        ("9" * 400, None),
        ("Fri, 15 Jan 2027 08:01:00 +99999999999999", None),
        (f"Fri, 15 Jan {'9' * 30} 08:01:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_a_day_at_most(text: str | None, seconds: float | None) -> None:
    assert read_retry_after(text, NOW) == seconds
