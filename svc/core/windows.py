"""Completion window of a job, and the expiry of its order.

tiers       async = 1h = 3600 s, batch = 24h = 86400 s
windows     <n>h, <n>m, <n>s as written; any other form is 3600 s
expiry      window + settlement margin, at most 86400 s from signing
"""

import re
from typing import Final, Literal

import attrs

from common.api import limits
from common.refusal import Refused

DEFAULT_WINDOW: Final = "batch"
WINDOW_FORMS: Final = "1h (async), 24h (batch), <n>h, <n>m or <n>s"
LONGEST_ORDER_LIFE: Final = limits.ORDER_LIFE
_TIERS: Final = {"async": 3_600, "batch": 86_400}
USUAL_WINDOWS: Final = frozenset(_TIERS.values())
_OTHERWISE: Final = 3_600
_WINDOW: Final = re.compile(r"([0-9]{1,10})([hms])", re.ASCII)
_SECONDS: Final = {"h": 3_600, "m": 60, "s": 1}

CompletionWindow = Literal["1h", "24h"]
_COMPLETION: Final[dict[str, CompletionWindow]] = {"1h": "1h", "async": "1h", "24h": "24h", "batch": "24h"}


def window_seconds(window: str) -> int:
    """The SLA that an order signs. Whether it is allowed is the network's to say.

    >>> [window_seconds(window) for window in ("async", "batch", "90m", "300s", "soon")]
    [3600, 86400, 5400, 300, 3600]
    """
    if window in _TIERS:
        return _TIERS[window]
    found = _WINDOW.fullmatch(window)
    if found is None:
        return _OTHERWISE
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds >> 32:
        raise Refused(f"a window of {window} does not fit an order", "window")
    return seconds


def is_window(window: str) -> bool:
    """True for a window that is signed as written; every other text is signed as an hour.

    >>> [is_window(window) for window in ("batch", "90m", "7d")]
    [True, True, False]
    """
    return window in _TIERS or _WINDOW.fullmatch(window) is not None


def window_words(seconds: int) -> str:
    """
    >>> [window_words(seconds) for seconds in (86_400, 3_600, 7_200, 300, 45)]
    ['24h', '1h', '2h', '5m', '45s']
    """
    for length, unit in ((3_600, "h"), (60, "m")):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


@attrs.frozen(slots=True)
class Windows:
    """Windows that orders may have, in seconds. `certain`: the network takes no others; else these are those that
    somebody asks a price for."""

    seconds: tuple[int, ...]
    certain: bool

    @property
    def words(self) -> str:
        return ", ".join(window_words(each) for each in self.seconds) or "none"

    def check(self, window: str, seconds: int) -> None:
        """Raises Refused (`window_not_allowed`) for one that the network does not take."""
        if self.certain and seconds not in self.seconds:
            raise Refused(f"the network takes no window of {window}; it takes {self.words}", "window", WINDOW_REFUSED)


WINDOW_REFUSED: Final = "window_not_allowed"


def expiry(now: int, sla_secs: int, margin: int) -> int:
    """Until when the order can be claimed."""
    return now + min(sla_secs + margin, LONGEST_ORDER_LIFE)


def completion_window(window: str) -> CompletionWindow:
    """A batch has one of two windows: `1h` (also `async`) or `24h` (also `batch`)."""
    if window not in _COMPLETION:
        raise Refused("a batch's window is 1h (async) or 24h (batch)", "completion_window")
    return _COMPLETION[window]
