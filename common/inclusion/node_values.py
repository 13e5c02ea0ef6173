"""Strict readers of the values in a node's JSON-RPC results."""

import re
from collections.abc import Mapping
from typing import Any, Final

from common.refusal import Refused

_QUANTITY_PATTERN: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")


def read_quantity(result: Mapping[str, Any], name: str) -> int:
    """Read member `name` of a result as a hex integer."""
    value = result.get(name)
    if isinstance(value, str) and _QUANTITY_PATTERN.fullmatch(value):
        return int(value, 16)
    raise Refused(f"the node returned a malformed {name}: it must be a hex quantity", name)


def read_bytes(result: Mapping[str, Any], name: str, length: int | None = None) -> bytes:
    """Read member `name` of a result as bytes: exactly `length` bytes, or any number if `length` is None."""
    return bytes_from_hex(result.get(name), name, length)


def bytes_from_hex(value: object, name: str, length: int | None = None) -> bytes:
    """Read a hex string as bytes. The error calls the value `name`."""
    if isinstance(value, str) and value.startswith("0x"):
        try:
            raw = bytes.fromhex(value[2:])
        except ValueError:
            raw = None
        if raw is not None and (length is None or len(raw) == length):
            return raw
    raise Refused(
        f"the node returned a malformed {name}: it must be hex{'' if length is None else f' of {length} bytes'}", name
    )


def read_objects(result: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Read member `name` of a result as a list of JSON objects."""
    value = result.get(name)
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise Refused(f"the node returned a malformed {name}: it must be a list of objects", name)
    return value


def read_bytes_list(result: Mapping[str, Any], name: str, length: int) -> list[bytes]:
    """Read member `name` of a result as a list of hex strings of `length` bytes each."""
    value = result.get(name)
    if not isinstance(value, list):
        raise Refused(f"the node returned a malformed {name}: it must be a list", name)
    return [bytes_from_hex(each, name, length) for each in value]
