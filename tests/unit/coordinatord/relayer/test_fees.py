import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.chain.relayer.fees import (
    NO_CEILING,
    Fee,
    FeeCeiling,
    FeeMarket,
    fee_ceiling_for_chain,
    initial_fee,
    next_base_fee,
    plausible_base_fee,
    plausible_tip,
    replacement_fee,
    self_transfer_fee,
)

GWEI = 10**9


@pytest.mark.parametrize(
    ("gas_used", "expected"),
    [(15_000_000, 800), (30_000_000, 900), (0, 700), (15_000_001, 801)],
    ids=["at target", "full", "empty", "just above target"],
)
def test_next_base_fee_moves_by_an_eighth_at_most(gas_used: int, expected: int) -> None:
    assert next_base_fee(800, gas_used, 30_000_000) == expected


def test_sufficient_fee_is_kept() -> None:
    market = FeeMarket(base_fee=10 * GWEI, tip=GWEI)
    assert replacement_fee(initial_fee(market), market, refused=False) is None
    assert replacement_fee(initial_fee(market), FeeMarket(19 * GWEI, GWEI), refused=False) is None


def test_a_base_fee_above_the_cap_is_followed() -> None:
    dearer = FeeMarket(base_fee=50 * GWEI, tip=GWEI)
    assert replacement_fee(Fee(max_fee=21 * GWEI, max_tip=GWEI), dearer, refused=False) == Fee(
        101 * GWEI, GWEI * 9 // 8
    )


def test_a_refused_fee_rises_although_the_market_is_content() -> None:
    market = FeeMarket(base_fee=10 * GWEI, tip=GWEI)
    raised = replacement_fee(initial_fee(market), market, refused=True)
    assert raised == Fee(-(-21 * GWEI * 9 // 8), GWEI * 9 // 8)


def test_far_above_the_market_a_refusal_raises_nothing_more() -> None:
    market = FeeMarket(base_fee=10, tip=1)
    assert replacement_fee(Fee(max_fee=210, max_tip=10), market, refused=True) is None


@given(
    st.builds(Fee, max_fee=st.integers(0, 10**15), max_tip=st.integers(0, 10**12)),
    st.builds(FeeMarket, base_fee=st.integers(0, 10**15), tip=st.integers(0, 10**12)),
    st.booleans(),
)
def test_replacement_meets_the_nodes_minimum(current: Fee, market: FeeMarket, refused: bool) -> None:
    raised = replacement_fee(current, market, refused=refused)
    if raised is not None:
        assert raised.max_fee * 8 >= current.max_fee * 9
        assert raised.max_tip * 8 >= current.max_tip * 9
        assert raised.max_fee > current.max_fee
        assert raised.max_tip > current.max_tip
        assert raised.max_fee >= market.base_fee + min(raised.max_tip, market.tip)


CEILING = FeeCeiling(max_fee=100 * GWEI, max_tip=4 * GWEI)


def test_offer_stays_below_the_ceiling_with_room_for_a_tip() -> None:
    assert initial_fee(FeeMarket(10 * GWEI, 500_000 * GWEI), CEILING) == Fee(100 * GWEI, 2 * GWEI)
    assert initial_fee(FeeMarket(10 * GWEI, GWEI), CEILING) == Fee(21 * GWEI, GWEI)


def test_a_lying_refusal_raises_no_further_than_the_ceiling() -> None:
    market = FeeMarket(30 * GWEI, GWEI)
    fee, raises = initial_fee(market, CEILING), 0
    while (dearer := replacement_fee(fee, market, refused=True, ceiling=CEILING)) is not None:
        fee, raises = dearer, raises + 1
    assert raises > 0
    assert fee.max_fee <= 100 * GWEI
    assert fee.max_tip <= 4 * GWEI


@pytest.mark.parametrize(("base_fee", "below"), [(50, False), (99, False), (100, True), (400, True)])
def test_the_ceiling_is_below_a_market_that_would_not_take_it(base_fee: int, below: bool) -> None:
    assert CEILING.is_below(FeeMarket(base_fee * GWEI, GWEI)) is below
    assert not NO_CEILING.is_below(FeeMarket(base_fee * GWEI, GWEI))


def test_above_the_ceiling_nothing_is_replaced() -> None:
    assert replacement_fee(Fee(21 * GWEI, GWEI), FeeMarket(400 * GWEI, GWEI), refused=True, ceiling=CEILING) is None


def test_replacement_pays_more_than_the_given_up_bytes() -> None:
    current = Fee(100 * GWEI, 4 * GWEI)
    dearer = self_transfer_fee(current, FeeMarket(GWEI, GWEI), ceiling=CEILING)
    assert dearer == Fee(current.max_fee * 9 // 8, current.max_tip * 9 // 8)


def test_settings_override_the_chains_ceiling() -> None:
    assert fee_ceiling_for_chain(1, None, None) == FeeCeiling(500 * GWEI, 20 * GWEI)
    assert fee_ceiling_for_chain(1, 60, None) == FeeCeiling(60 * GWEI, 20 * GWEI)
    assert fee_ceiling_for_chain(987654, None, None) == NO_CEILING
    development = fee_ceiling_for_chain(31337, None, None)
    assert development == FeeCeiling(100_000 * GWEI, 10_000 * GWEI)
    assert [fee_ceiling_for_chain(each, None, None) for each in (1_900_000_000, 1_999_999_999)] == [development] * 2
    assert [fee_ceiling_for_chain(each, None, None) for each in (1_899_999_999, 2_000_000_000)] == [NO_CEILING] * 2
    assert fee_ceiling_for_chain(987654, None, 3) == FeeCeiling(None, 3 * GWEI)


def test_suggested_tip_is_checked_against_blocks() -> None:
    assert plausible_tip(500_000 * GWEI, [0, GWEI, 2 * GWEI, 0, 90 * GWEI], GWEI) == 6 * GWEI
    assert plausible_tip(GWEI // 2, [2 * GWEI], GWEI) == GWEI // 2
    assert plausible_tip(GWEI, [1, 1, 1], GWEI) == GWEI
    assert plausible_tip(30 * GWEI, [0, 0], GWEI) == 30 * GWEI


def test_forecast_is_checked_against_the_header() -> None:
    assert plausible_base_fee(10, 15) == 15
    assert plausible_base_fee(10, 5) == 10
    assert plausible_base_fee(10, 5_000_000) == 80
    assert plausible_base_fee(0, 7) == 7
