import pytest

from common.refusal import Refused
from svc.core.windows import WINDOW_NOT_ALLOWED, Windows, completion_window, expiry_time, format_window, window_seconds


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
