"""Read the duration at which a video request is priced."""

import re
from typing import Final

from common.pricing.model_input import DURATION_PARAMS, Input
from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

AUTO_DURATION_S: Final = 15
DEFAULT_DURATION_S: Final = 5
_SECONDS_PATTERN: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def priced_seconds(model_input: Input) -> int:
    """Return the seconds in `duration_secs` or, if that is missing, in `duration`.

    The value is a number (truncated), a string of digits, or `auto` (15 seconds). If the value is missing or not
    positive, return 5. Refuse any other value.
    """
    for param in DURATION_PARAMS:
        value = model_input.get(param)
        if value is not None:
            seconds = _read_seconds(value, param)
            return seconds if seconds > 0 else DEFAULT_DURATION_S
    return DEFAULT_DURATION_S


def _read_seconds(value: object, param: str) -> int:
    if isinstance(value, str):
        if value == "auto":
            return AUTO_DURATION_S
        if _SECONDS_PATTERN.fullmatch(value):
            return int(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SAFE_INTEGER:
        return int(value)
    raise Refused(f"{param} must be seconds (a number or a string of digits) or auto", param)
