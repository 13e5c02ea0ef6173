"""Canonical JSON (RFC 8785, JCS): one text per value, the same in every implementation.

Keys are sorted by their UTF-16 code units. There are no spaces, strings are escaped only as JSON.stringify does, and
numbers are written as ECMAScript does. Beyond the RFC, a number written as an integer must be within ±(2^53−1), because
JavaScript would round larger integers.
"""

import codecs
import math
from json.encoder import encode_basestring
from typing import Final

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER
from common.strict_json import MAX_DEPTH

# Python reads the file of a codec at its first use, which fails in a process that has no free file descriptor.
_UTF16: Final = codecs.lookup("utf-16-be")


def canonical(value: object) -> bytes:
    """Return the canonical text of a JSON value.

    Refuse values that `strict_json.parse` never returns, such as NaN, and integers beyond ±(2^53−1).
    """
    written: list[str] = []
    _write(value, written, 0)
    try:
        return "".join(written).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("a JSON string must not contain a lone surrogate") from None


def _write(value: object, written: list[str], depth: int) -> None:
    if isinstance(value, str):
        written.append(_quoted(value))
    elif value is None:
        written.append("null")
    elif isinstance(value, bool):
        written.append("true" if value else "false")
    elif isinstance(value, int | float):
        written.append(_number_text(value))
    elif isinstance(value, dict | list | tuple):
        if depth == MAX_DEPTH:
            raise Refused(f"the JSON is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            _write_members(value, written, depth + 1)
        else:
            _write_items(value, written, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} is not a JSON type")


def _write_members(members: dict[str, object], written: list[str], depth: int) -> None:
    opening = "{"
    for key in sorted(members, key=_utf16_sort_key):
        written.append(opening + _quoted(key) + ":")
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


def _utf16_sort_key(key: str) -> bytes:
    return _UTF16.encode(key, "surrogatepass")[0]


def _quoted(text: str) -> str:
    if "\x00" in text:
        raise Refused("a JSON string must not contain NUL")
    quoted: str = encode_basestring(text)
    return quoted


def _number_text(number: int | float) -> str:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise Refused("a JSON number must not be NaN or infinite")
        if not number.is_integer() or abs(number) >= 1e21:
            return _ecmascript_float(number)
        number = int(number)
    if abs(number) > MAX_SAFE_INTEGER:
        raise Refused("an integer in JSON must be within ±(2^53−1)")
    return str(number)


def _ecmascript_float(number: float) -> str:
    """Return a float as ECMAScript writes it. Python writes the same digits, but formats the exponent differently."""
    shortest = repr(number)
    mantissa, _, exponent = shortest.partition("e")
    if not exponent:
        return shortest
    if int(exponent) >= -6 and exponent.startswith("-"):
        sign = "-" if number < 0 else ""
        digits = mantissa.lstrip("-").replace(".", "")
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits}"
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
