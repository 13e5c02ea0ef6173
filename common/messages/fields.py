"""Validators (attrs) for the value ranges of EIP-712 fields.

A message with valid values can be packed and hashed. For values from requests, the request's parser reports errors
earlier, with the name of the request's field.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs

_Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]

MASK64: Final = 2**64 - 1
_VALIDATOR_KEY: Final = "validator"


def _uint(bits: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: int) -> None:
        if value >> bits:  # also true for negative values
            raise ValueError(f"{field.name} does not fit a uint{bits}")

    return check


def _fixed_bytes(length: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: bytes) -> None:
        if len(value) != length:
            raise ValueError(f"{field.name} must be {length} bytes")

    return check


def checked_by_class(validator: _Validator) -> Any:
    """Declare a field without a validator call, for a class that checks all fields at once in `__attrs_post_init__`.

    If the check fails, the class calls `raise_invalid_field`. In batches, one validator call per field would take
    longer than hashing the message.
    """
    return attrs.field(metadata={_VALIDATOR_KEY: validator})


def raise_invalid_field(message: "attrs.AttrsInstance") -> None:
    """Raise ValueError for the first field whose value does not fit. The error names the field."""
    for field in attrs.fields(type(message)):
        field.metadata[_VALIDATOR_KEY](message, field, getattr(message, field.name))


uint32: Final = _uint(32)
uint64: Final = _uint(64)
uint128: Final = _uint(128)
uint256: Final = _uint(256)
bytes32: Final = _fixed_bytes(32)
address: Final = _fixed_bytes(20)
