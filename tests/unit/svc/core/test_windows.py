import pytest

from common.refusal import Refused
from svc.core.orders import completion_window, expiry, window_seconds


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
def test_window_is_signed_as_written_and_any_other_form_as_an_hour(window: str, seconds: int) -> None:
    assert window_seconds(window) == seconds


def test_window_that_no_order_can_hold_is_refused() -> None:
    with pytest.raises(Refused):
        window_seconds("1193047h")


@pytest.mark.parametrize(
    ("sla", "margin", "life"), [(3600, 3600, 7200), (86_400, 3600, 86_400), (86_400, 0, 86_400), (300, 0, 300)]
)
def test_order_stands_for_window_and_margin_within_a_day(sla: int, margin: int, life: int) -> None:
    assert expiry(1_000, sla, margin) == 1_000 + life


@pytest.mark.parametrize(("window", "label"), [("1h", "1h"), ("async", "1h"), ("24h", "24h"), ("batch", "24h")])
def test_batch_has_one_of_two_windows(window: str, label: str) -> None:
    assert completion_window(window) == label


def test_other_windows_are_no_batch_windows() -> None:
    with pytest.raises(Refused):
        completion_window("2h")
