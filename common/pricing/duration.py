"""Duration in seconds at which a video request is priced."""

import re
from typing import Final

from common.pricing.model_input import DURATIONS, Input
from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

AUTO_SECONDS: Final = 15
DEFAULT_SECONDS: Final = 5
_DIGITS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def seconds_of(model_input: Input) -> int:
    """Return the seconds in `duration_secs`, or otherwise in `duration`.

    The value is a number, which is truncated, a string of digits, or `auto`. A missing or non-positive value counts as
    5. Refused for any other value.
    """
    for param in DURATIONS:
        value = model_input.get(param)
        if value is not None:
            seconds = _seconds(value, param)
            return seconds if seconds > 0 else DEFAULT_SECONDS
    return DEFAULT_SECONDS


def _seconds(value: object, param: str) -> int:
    if isinstance(value, str):
        if value == "auto":
            return AUTO_SECONDS
        if _DIGITS.fullmatch(value):
            return int(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SAFE_INTEGER:
        return int(value)
    raise Refused(f"{param} must be a number of seconds, digits or auto", param)
