"""Canonical JSON (RFC 8785, JCS): one text per value, the same in every implementation.

Keys are sorted by their UTF-16 code units. There are no spaces, strings are escaped only as JSON.stringify does, and
numbers are written as ECMAScript does. Beyond the RFC, a number written as an integer must be within ±(2^53−1), because
JavaScript would change larger ones.
"""

import math
from json.encoder import encode_basestring

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER
from common.strict_json import MAX_DEPTH


def canonical(value: object) -> bytes:
    """Return the canonical text of a JSON value. Refuse values that `parse` refuses, and integers beyond ±(2^53−1)."""
    written: list[str] = []
    _write(value, written, 0)
    try:
        return "".join(written).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("JSON strings hold no lone surrogates") from None


def _write(value: object, written: list[str], depth: int) -> None:
    if isinstance(value, str):
        written.append(_text(value))
    elif value is None:
        written.append("null")
    elif isinstance(value, bool):
        written.append("true" if value else "false")
    elif isinstance(value, int | float):
        written.append(_number(value))
    elif isinstance(value, dict | list | tuple):
        if depth == MAX_DEPTH:
            raise Refused(f"the JSON nests deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            _write_members(value, written, depth + 1)
        else:
            _write_items(value, written, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} is not a JSON type")


def _write_members(members: dict[str, object], written: list[str], depth: int) -> None:
    opening = "{"
    for key in sorted(members, key=_utf16):
        written.append(opening + _text(key) + ":")
        _write(members[key], written, depth)
        opening = ","
    written.append("}" if members else "{}")


def _write_items(items: "list[object] | tuple[object, ...]", written: list[str], depth: int) -> None:
    opening = "["
    for item in items:
        written.append(opening)
        _write(item, written, depth)
        opening = ","
    written.append("]" if items else "[]")


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _text(text: str) -> str:
    if "\x00" in text:
        raise Refused("JSON strings hold no NUL")
    quoted: str = encode_basestring(text)
    return quoted


def _number(number: int | float) -> str:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise Refused("JSON has no NaN and no infinities")
        if not number.is_integer() or abs(number) >= 1e21:
            return _ecmascript(number)
        number = int(number)
    if abs(number) > MAX_SAFE_INTEGER:
        raise Refused("an integer in JSON must be within ±(2^53−1)")
    return str(number)


def _ecmascript(number: float) -> str:
    """Return the float as ECMAScript writes it. Python has the same digits, but other rules for exponents."""
    shortest = repr(number)
    mantissa, _, exponent = shortest.partition("e")
    if not exponent:
        return shortest
    if int(exponent) >= -6 and exponent.startswith("-"):
        sign = "-" if number < 0 else ""
        digits = mantissa.lstrip("-").replace(".", "")
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits}"
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
