"""attrs validators for the value ranges of EIP-712 fields.

They ensure that every message can be packed and hashed. Readers of requests reject such values earlier and name the
field of the request.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs

_Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]

MASK64: Final = 2**64 - 1
_VALIDATOR: Final = "validator"


def _uint(bits: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: int) -> None:
        if value >> bits:  # also true for negative values
            raise ValueError(f"{field.name} does not fit a uint{bits}")

    return check


def _fixed(length: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: bytes) -> None:
        if len(value) != length:
            raise ValueError(f"{field.name} must be {length} bytes")

    return check


def checked_by_class(validator: _Validator) -> Any:
    """Declare a field of a class that checks all fields in one expression.

    Used for messages of batch lines, where calling one validator per field takes longer than hashing the message. If
    the class's check fails, it calls `raise_misfit`.
    """
    return attrs.field(metadata={_VALIDATOR: validator})


def raise_misfit(message: "attrs.AttrsInstance") -> None:
    """Raise ValueError for the field that does not fit."""
    for field in attrs.fields(type(message)):
        field.metadata[_VALIDATOR](message, field, getattr(message, field.name))


uint32: Final = _uint(32)
uint64: Final = _uint(64)
uint128: Final = _uint(128)
uint256: Final = _uint(256)
bytes32: Final = _fixed(32)
address: Final = _fixed(20)
