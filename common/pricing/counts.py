"""Whole numbers inside a model's input, as clients of all languages write them."""

from typing import Final

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

_LARGEST: Final = float(MAX_SAFE_INTEGER)


def read_count(value: object, param: str, *, least: int = 0) -> int:
    """A whole number of at least `least`. 8.0 is 8: canonical JSON writes the two alike, so both sides read one."""
    number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST else value
    if type(number) is not int or number < least or number > MAX_SAFE_INTEGER:
        raise Refused(f"{param} must be a whole number of at least {least}", param)
    return number
