import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.relayer.fees import Fee, Market, next_base_fee, offer, replacement

GWEI = 10**9


@pytest.mark.parametrize(
    ("gas_used", "expected"),
    [(15_000_000, 800), (30_000_000, 900), (0, 700), (15_000_001, 801)],
    ids=["at target", "full", "empty", "just above target"],
)
def test_next_base_fee_moves_by_an_eighth_at_most(gas_used: int, expected: int) -> None:
    assert next_base_fee(800, gas_used, 30_000_000) == expected


def test_a_fee_that_the_next_block_takes_is_kept() -> None:
    market = Market(base_fee=10 * GWEI, tip=GWEI)
    assert replacement(offer(market), market, refused=False) is None
    assert replacement(offer(market), Market(19 * GWEI, GWEI), refused=False) is None


def test_a_base_fee_above_the_cap_is_followed() -> None:
    dearer = Market(base_fee=50 * GWEI, tip=GWEI)
    assert replacement(Fee(cap=21 * GWEI, tip=GWEI), dearer, refused=False) == Fee(101 * GWEI, GWEI * 9 // 8)


def test_a_refused_fee_rises_although_the_market_is_content() -> None:
    market = Market(base_fee=10 * GWEI, tip=GWEI)
    raised = replacement(offer(market), market, refused=True)
    assert raised == Fee(-(-21 * GWEI * 9 // 8), GWEI * 9 // 8)


def test_far_above_the_market_a_refusal_raises_nothing_more() -> None:
    market = Market(base_fee=10, tip=1)
    assert replacement(Fee(cap=210, tip=10), market, refused=True) is None


@given(
    st.builds(Fee, cap=st.integers(0, 10**15), tip=st.integers(0, 10**12)),
    st.builds(Market, base_fee=st.integers(0, 10**15), tip=st.integers(0, 10**12)),
    st.booleans(),
)
def test_a_replacement_is_what_nodes_accept(current: Fee, market: Market, refused: bool) -> None:
    raised = replacement(current, market, refused=refused)
    if raised is not None:
        assert raised.cap * 8 >= current.cap * 9
        assert raised.tip * 8 >= current.tip * 9
        assert raised.cap > current.cap
        assert raised.tip > current.tip
        assert raised.cap >= market.base_fee + min(raised.tip, market.tip)
