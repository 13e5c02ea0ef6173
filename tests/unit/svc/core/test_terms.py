import pytest

from common.refusal import Refused
from svc.core.bids import Bid, Rates, market_bid, read_rates
from svc.core.clock import ServerClock
from svc.core.money import Token, batch_ceiling, format_token_amount, line_ceiling, order_ceiling
from svc.core.retries import RetryPolicy
from svc.core.windows import WINDOW_NOT_ALLOWED, Windows, completion_window, expiry_time, format_window, window_seconds
from svc.errors import NoProvider, OverCeiling
from svc.records import Candidate

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


@pytest.mark.parametrize(
    ("window", "seconds"),
    [
        ("async", 3600),
        ("batch", 86_400),
        ("1h", 3600),
        ("24h", 86_400),
        ("48h", 172_800),
        ("90m", 5400),
        ("300s", 300),
        ("0s", 0),
        *((other, 3600) for other in ("", "soon", "1.5h", "1 h", "1H", "h", "-1h", "1d", "١h", "60")),
    ],
)
def test_unusual_window_is_signed_as_an_hour(window: str, seconds: int) -> None:
    assert window_seconds(window) == seconds


def test_window_that_no_order_can_hold_is_refused() -> None:
    assert window_seconds(f"{2**32 - 1}s") == 2**32 - 1
    with pytest.raises(Refused):
        window_seconds(f"{2**32}s")


@pytest.mark.parametrize(("seconds", "words"), [(0, "0s"), (59, "59s"), (60, "1m"), (3_660, "61m"), (7_200, "2h")])
def test_window_is_shown_in_its_largest_exact_unit(seconds: int, words: str) -> None:
    assert format_window(seconds) == words


def test_unknown_window_lists_the_accepted_ones() -> None:
    allowed = Windows((3_600, 60), complete=True)
    allowed.check("1m", 60)
    with pytest.raises(Refused, match="does not allow a window of 2h: use 1h, 1m") as refused:
        allowed.check("2h", 7_200)
    assert (refused.value.param, refused.value.code) == ("window", WINDOW_NOT_ALLOWED)
    with pytest.raises(Refused, match="use none"):
        Windows((), complete=True).check("2h", 7_200)
    Windows((3_600,), complete=False).check("2h", 7_200)  # the list may be incomplete


@pytest.mark.parametrize(
    ("sla", "margin", "life"), [(3600, 3600, 7200), (86_400, 3600, 86_400), (86_400, 0, 86_400), (300, 0, 300)]
)
def test_order_stands_for_window_and_margin_within_a_day(sla: int, margin: int, life: int) -> None:
    assert expiry_time(1_000, sla, margin) == 1_000 + life


@pytest.mark.parametrize(("window", "label"), [("1h", "1h"), ("async", "1h"), ("24h", "24h"), ("batch", "24h")])
def test_batch_has_one_of_two_windows(window: str, label: str) -> None:
    assert completion_window(window) == label


def test_other_windows_are_no_batch_windows() -> None:
    with pytest.raises(Refused):
        completion_window("2h")


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


@pytest.mark.parametrize(("attempt", "least"), [(0, 0.5), (1, 1.0), (2, 2.0)])
def test_pause_doubles_and_is_spread_by_a_quarter_second(attempt: int, least: float) -> None:
    assert RetryPolicy(jitter=lambda low, high: low).pause(attempt) == least
    assert RetryPolicy(jitter=lambda low, high: high).pause(attempt) == least + 0.25
