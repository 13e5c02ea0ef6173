"""Read the completion window of a job, and compute the expiry of its order.

A window is `async` (1h, 3600 s), `batch` (24h, 86400 s), or `<n>h`, `<n>m` or `<n>s`. Any other text means 3600 s.
An order expires at the end of its window plus the settlement margin, at most 86400 s after signing.
"""

import re
from typing import Final, Literal

import attrs

from common.api import limits
from common.refusal import Refused

DEFAULT_WINDOW: Final = "batch"
WINDOW_NOT_ALLOWED: Final = "window_not_allowed"
WINDOW_FORMS: Final = "1h (async), 24h (batch), <n>h, <n>m or <n>s"
MAX_ORDER_LIFETIME_S: Final = limits.MAX_ORDER_LIFETIME_S
_NAMED_WINDOWS: Final = {"async": 3_600, "batch": 86_400}
USUAL_WINDOWS: Final = frozenset(_NAMED_WINDOWS.values())
_UNKNOWN_WINDOW_S: Final = 3_600
_WINDOW_PATTERN: Final = re.compile(r"([0-9]{1,10})([hms])", re.ASCII)
_SECONDS_PER_UNIT: Final = {"h": 3_600, "m": 60, "s": 1}

CompletionWindow = Literal["1h", "24h"]
_COMPLETION_WINDOWS: Final[dict[str, CompletionWindow]] = {"1h": "1h", "async": "1h", "24h": "24h", "batch": "24h"}


def window_seconds(window: str) -> int:
    """Return the seconds to sign as an order's window. Does not check whether the network allows the window.

    >>> [window_seconds(window) for window in ("async", "batch", "90m", "300s", "soon")]
    [3600, 86400, 5400, 300, 3600]
    """
    if window in _NAMED_WINDOWS:
        return _NAMED_WINDOWS[window]
    found = _WINDOW_PATTERN.fullmatch(window)
    if found is None:
        return _UNKNOWN_WINDOW_S
    seconds = int(found[1]) * _SECONDS_PER_UNIT[found[2]]
    if seconds >> 32:
        raise Refused(f"the window {window} is too long: use at most 2^32 - 1 seconds", "window")
    return seconds


def is_valid_window(window: str) -> bool:
    """Return True if a window has a known form. A window with another form is signed as one hour.

    >>> [is_valid_window(window) for window in ("batch", "90m", "7d")]
    [True, True, False]
    """
    return window in _NAMED_WINDOWS or _WINDOW_PATTERN.fullmatch(window) is not None


def format_window(seconds: int) -> str:
    """Format a window in the largest unit that divides it.

    >>> [format_window(seconds) for seconds in (86_400, 3_600, 7_200, 300, 45)]
    ['24h', '1h', '2h', '5m', '45s']
    """
    for length, unit in ((3_600, "h"), (60, "m")):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


@attrs.frozen(slots=True)
class Windows:
    """Allowed windows in seconds. If `complete` is False, only the windows that have asks are known."""

    seconds: tuple[int, ...]
    complete: bool

    @property
    def as_text(self) -> str:
        return ", ".join(format_window(each) for each in self.seconds) or "none"

    def check(self, window: str, seconds: int) -> None:
        """Raise Refused (`window_not_allowed`) for a window that the network does not allow."""
        if self.complete and seconds not in self.seconds:
            raise Refused(
                f"the network does not allow a window of {window}: use {self.as_text}", "window", WINDOW_NOT_ALLOWED
            )


def expiry_time(now: int, sla_secs: int, margin: int) -> int:
    """Return the Unix time from which an order signed at `now` can no longer be claimed."""
    return now + min(sla_secs + margin, MAX_ORDER_LIFETIME_S)


def completion_window(window: str) -> CompletionWindow:
    """Return the window of a batch: `1h` (also `async`) or `24h` (also `batch`)."""
    if window not in _COMPLETION_WINDOWS:
        raise Refused("the window of a batch must be 1h (async) or 24h (batch)", "completion_window")
    return _COMPLETION_WINDOWS[window]
