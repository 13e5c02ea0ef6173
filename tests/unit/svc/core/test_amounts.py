import pytest

from svc.core.money import Token, batch_ceiling, format_token_amount, line_ceiling, order_ceiling
from svc.errors import OverCeiling

VERIFIED = Token("Dollar", 6, decimals_verified=True)


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
    assert format_token_amount(amount, decimals) == shown


def test_default_ceiling_is_one_token_or_ten_per_batch() -> None:
    assert [each(VERIFIED, None, None).max_amount for each in (order_ceiling, line_ceiling, batch_ceiling)] == [
        *(10**6, 10**6),
        10**7,
    ]


@pytest.mark.parametrize(
    ("given", "configured", "most", "default"),
    [(5, 7, 5, False), (0, 7, 0, False), (None, 7, 7, False), (None, None, 10**6, True)],
)
def test_order_options_override_configuration(
    given: int | None, configured: int | None, most: int, default: bool
) -> None:
    ceiling = order_ceiling(VERIFIED, given, configured)
    assert (ceiling.max_amount, ceiling.is_default) == (most, default)


@pytest.mark.parametrize(
    ("decimals", "decimals_verified", "most"), [(18, True, 10**18), (18, False, 10**6), (2, False, 100)]
)
def test_unverified_decimals_do_not_raise_the_ceiling(decimals: int, decimals_verified: bool, most: int) -> None:
    assert order_ceiling(Token("Dollar", decimals, decimals_verified), None, None).max_amount == most


def test_amount_above_the_ceiling_explains_how_to_raise_it() -> None:
    ceiling = order_ceiling(VERIFIED, None, None)
    ceiling.check(10**6, "the order")
    with pytest.raises(OverCeiling) as refused:
        ceiling.check(2_500_000, "the order")
    error = refused.value
    assert (error.code, error.amount, error.default) == ("over_max_amount", 2_500_000, True)
    assert error.message == (
        "the order costs up to 2.5 Dollar (2500000 base units), above the default ceiling of 1 Dollar"
        " (1000000 base units); raise the ceiling with --max-amount, SVC_MAX_AMOUNT or max_amount="
    )
