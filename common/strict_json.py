"""Strict JSON parser that rejects texts that other parsers read differently.

Examples are duplicate keys, NaN and infinities (also as 1e400), NUL and lone surrogates, deep nesting, a byte order
mark, and bytes that are not UTF-8.
"""

import json
import math
import re
from typing import Final, NoReturn

import msgspec

from common.refusal import Refused

MAX_DEPTH: Final = 32
# Errors of msgspec.json.decode for another shape, malformed JSON, text that is not UTF-8 and deep nesting.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def parse(raw: bytes | bytearray, param: str | None = None) -> object:
    """Return the value of a JSON text. Raises Refused with `param` and without a code."""
    # The checks cost as much as the decoding, so skip those that a text cannot fail: few brackets cannot nest too deep,
    # and after a strict UTF-8 decode only a \u escape can produce a NUL or a lone surrogate.
    escapes = b"\\" in raw
    if not escapes and (members := _flat(raw)) is not None:
        return members
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(raw, param)
    if not escapes and (members := _nested(raw)) is not None:
        return members
    try:
        text = raw.decode("utf-8")
        value: object = _DECODER.decode(text)
    except UnicodeDecodeError:
        raise Refused("the JSON is not valid UTF-8", param) from None
    except json.JSONDecodeError as error:
        raise Refused(f"not valid JSON: {error.msg} at character {error.pos}", param) from None
    except Refused as refusal:
        raise Refused(refusal.message, param) from None
    except ValueError:  # int() of more digits than the interpreter converts
        raise Refused("the JSON holds a number that is too long", param) from None
    if escapes and b"\\u" in raw:
        _check_texts(value, param)
    return value


def has_more_values(raw: bytes | bytearray, limit: int) -> bool:
    """Return True if the JSON may hold more than `limit` values, each of which takes up to 100 bytes once parsed.

    Counts commas and opening brackets, also those in texts.
    """
    return len(raw) > limit and sum(map(raw.count, (b",", b"[", b"{"))) > limit


def _flat(raw: bytes | bytearray) -> object | None:
    """Parse a flat object without escapes. Return None for all other texts.

    The fast parser accepts duplicate keys, so count the quotes: each pair belongs to a key or a string value, and a
    duplicate key gives more pairs than the parsed value has. This function or `_nested` reads most bodies.
    """
    try:
        value = _FLAT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the standard parser reports the error
    strings = len(value) + list(map(type, value.values())).count(str)
    return value if raw.count(b'"') == 2 * strings else None


def _nested(raw: bytes | bytearray) -> object | None:
    """Parse a nested object without escapes in the same way."""
    try:
        value = _NESTED.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if type(value) is dict and raw.count(b'"') == 2 * _strings(value) else None


def _strings(value: object) -> int:
    """Count the strings in a value, including keys."""
    if type(value) is str:
        return 1
    if type(value) is dict:
        return len(value) + sum([_strings(member) for member in value.values()])
    return sum([_strings(item) for item in value]) if type(value) is list else 0


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refused("the JSON holds a duplicate key")
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Refused("the JSON holds a number that is out of range")
    return number


def _no_constant(name: str) -> NoReturn:
    raise Refused(f"{name} is not JSON")


_FLAT: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
_NESTED: Final = msgspec.json.Decoder()
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)


def _check_depth(raw: bytes | bytearray, param: str | None) -> None:
    """Refuse deep nesting before parsing.

    The standard parser recurses, and a dependency of eth-account raises the recursion limit, so deep input would crash
    the process. Each round removes all innermost pairs of brackets. A text of depth d is empty after d rounds.
    """
    brackets = _STRING.sub(b"", raw).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    # A remaining pair is too deep. The parser reports unbalanced brackets better, unless too many of them open.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise Refused(f"the JSON nests deeper than {MAX_DEPTH}", param)


def _check_texts(root: object, param: str | None) -> None:
    """Refuse NUL and lone surrogates in any string or key."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            if "\x00" in node:
                raise Refused("JSON strings hold no NUL", param)
            if not node.isascii() and _SURROGATE.search(node):
                raise Refused("JSON strings hold no lone surrogates", param)
        elif isinstance(node, dict):
            waiting.extend(node)
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
