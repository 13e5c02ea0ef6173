import pytest

from svc.cli.money import in_token, rate


@pytest.mark.parametrize(
    ("amount", "decimals", "shown"),
    [
        (0, 6, "0"),
        (1, 6, "0.000001"),
        (165_000, 6, "0.165"),
        (2_000_000, 6, "2"),
        (1_234_567_000_001, 6, "1,234,567.000001"),
        (5, 0, "5"),
        (2**127, 36, "170.141183460469231731687303715884105728"),
    ],
)
def test_amount_is_shown_exactly(amount: int, decimals: int, shown: str) -> None:
    assert in_token(amount, decimals) == shown


def test_rate_says_what_it_is_for() -> None:
    assert rate(600_000, 6) == "0.6/1M"
