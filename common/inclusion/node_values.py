"""Strict readers of the values in a node's JSON-RPC results."""

import re
from collections.abc import Mapping
from typing import Any, Final

from common.refusal import Refused

_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")


def quantity(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return int(value, 16)
    raise Refused(f"a node's {name} must be a hex quantity", name)


def octets(answer: Mapping[str, Any], name: str, length: int | None = None) -> bytes:
    return octets_of(answer.get(name), name, length)


def octets_of(value: object, name: str, length: int | None = None) -> bytes:
    if isinstance(value, str) and value.startswith("0x"):
        try:
            raw = bytes.fromhex(value[2:])
        except ValueError:
            raw = None
        if raw is not None and (length is None or len(raw) == length):
            return raw
    raise Refused(f"a node's {name} must be hex{'' if length is None else f' of {length} bytes'}", name)


def objects(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = answer.get(name)
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise Refused(f"a node's {name} must be a list of objects", name)
    return value


def texts(answer: Mapping[str, Any], name: str, length: int) -> list[bytes]:
    value = answer.get(name)
    if not isinstance(value, list):
        raise Refused(f"a node's {name} must be a list", name)
    return [octets_of(each, name, length) for each in value]
