"""The value ranges of EIP-712 fields, as attrs validators.

A message that exists can be hashed: what would not fit its field, and would otherwise be packed over its
neighbour or cut short, is refused where the message is made. Readers of foreign input refuse such values
before, naming the request's field.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs

_Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]

MASK64: Final = 2**64 - 1
_TOLD: Final = "validator"


def _uint(bits: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: int) -> None:
        if value >> bits:  # below zero as well: the shift keeps the sign
            raise ValueError(f"{field.name} does not fit a uint{bits}")

    return check


def _fixed(length: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: bytes) -> None:
        if len(value) != length:
            raise ValueError(f"{field.name} must be {length} bytes")

    return check


def told(validator: _Validator) -> Any:
    """A field whose class checks all of its fields in one expression, and has `refuse_misfit` say which it was. For
    the messages that are made for every line of a batch: a call for each field costs more than to hash them."""
    return attrs.field(metadata={_TOLD: validator})


def refuse_misfit(message: "attrs.AttrsInstance") -> None:
    for field in attrs.fields(type(message)):
        field.metadata[_TOLD](message, field, getattr(message, field.name))


uint32: Final = _uint(32)
uint64: Final = _uint(64)
uint128: Final = _uint(128)
uint256: Final = _uint(256)
bytes32: Final = _fixed(32)
address: Final = _fixed(20)
