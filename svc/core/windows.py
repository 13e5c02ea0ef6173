"""How long a job may take, and until when its order stands.

tiers       async = 1h = 3600 s, batch = 24h = 86400 s
windows     <n>h, <n>m, <n>s as written; any other form is 3600 s
expiry      window + settlement margin, at most 86400 s from signing
"""

import re
from typing import Final, Literal

from common.refusal import Refused

DEFAULT_WINDOW: Final = "batch"
LONGEST_ORDER_LIFE: Final = 86_400
_TIERS: Final = {"async": 3_600, "batch": 86_400}
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


def expiry(now: int, sla_secs: int, margin: int) -> int:
    """Until when the order can be claimed."""
    return now + min(sla_secs + margin, LONGEST_ORDER_LIFE)


def completion_window(window: str) -> CompletionWindow:
    """A batch has one of two windows: `1h` (also `async`) or `24h` (also `batch`)."""
    if window not in _COMPLETION:
        raise Refused("a batch's window is 1h (async) or 24h (batch)", "completion_window")
    return _COMPLETION[window]
