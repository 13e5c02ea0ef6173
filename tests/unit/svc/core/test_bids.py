import pytest

from common.refusal import Refused
from svc.core.bids import Bid, Rates, market_bid, read_rates
from svc.errors import NoProvider
from svc.records import Candidate

FIRST, SECOND = Candidate(7, "0x07", 10, 20), Candidate(9, "0x09", 11, 22)


@pytest.mark.parametrize(
    ("rate_in", "rate_out", "rates"),
    [
        (None, None, None),
        ("5", None, Rates(5, 0)),
        (None, 6, Rates(0, 6)),
        ("5", "6", Rates(5, 6)),
        (0, None, Rates(0, 0)),
        (str(2**128 - 1), 2**128 - 1, Rates(2**128 - 1, 2**128 - 1)),
    ],
)
def test_missing_rate_is_zero_and_two_take_the_market(
    rate_in: int | str | None, rate_out: int | str | None, rates: Rates | None
) -> None:
    assert read_rates(rate_in, rate_out) == rates


@pytest.mark.parametrize("rate", ["1.5", "-1", -1, 1.5, True, "", "1e6", "+1", "01", 2**128, str(2**128), "١"])
def test_fractions_negatives_and_what_is_no_uint128_are_refused(rate: object) -> None:
    with pytest.raises(Refused) as refused:
        read_rates(None, rate)  # type: ignore[arg-type] # the point of it
    assert refused.value.param == "rate_out"


def test_market_order_bids_the_first_ask_and_pins_its_provider() -> None:
    assert market_bid([FIRST, SECOND], None) == Bid(Rates(10, 20), 7, "0x07")


def test_named_provider_is_bid_its_own_ask() -> None:
    assert market_bid([FIRST, SECOND], 9) == Bid(Rates(11, 22), 9, "0x09")


def test_market_order_skips_providers_without_room() -> None:
    full, idle = Candidate(7, "0x07", 10, 20, room=0), Candidate(9, "0x09", 11, 22, room=3)
    assert market_bid([full, idle], None).designated == 9
    assert market_bid([full, idle], 7).designated == 7
    with pytest.raises(NoProvider, match="full"):
        market_bid([full], None)


@pytest.mark.parametrize(("candidates", "provider"), [([], None), ([FIRST], 9)])
def test_order_without_a_live_provider_is_refused(candidates: list[Candidate], provider: int | None) -> None:
    with pytest.raises(NoProvider) as refused:
        market_bid(candidates, provider)
    assert refused.value.code == "no_live_provider"
