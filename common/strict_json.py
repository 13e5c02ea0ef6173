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

# Errors that msgspec.json.decode raises: wrong shape or malformed JSON, invalid UTF-8, and deep nesting.
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_STRING_PATTERN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TO_SQUARE_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NON_BRACKET_BYTES: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE_PATTERN: Final = re.compile("[\ud800-\udfff]")


def parse(raw: bytes | bytearray, param: str | None = None) -> object:
    """Return the value of a JSON text. Raise Refused with `param` for invalid JSON."""
    # The checks cost as much as the decoding, so skip those that the text cannot fail. With few brackets, nesting is
    # not too deep. After a strict UTF-8 decode, only a \u escape can produce a NUL or a lone surrogate.
    escapes = b"\\" in raw
    if not escapes and (members := _parse_flat(raw)) is not None:
        return members
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(raw, param)
    if not escapes and (members := _parse_nested(raw)) is not None:
        return members
    try:
        text = raw.decode("utf-8")
        value: object = _STANDARD_DECODER.decode(text)
    except UnicodeDecodeError:
        raise Refused("the JSON is not valid UTF-8", param) from None
    except json.JSONDecodeError as error:
        raise Refused(f"not valid JSON: {error.msg} at character {error.pos}", param) from None
    except Refused as refusal:
        raise Refused(refusal.message, param) from None
    except ValueError:  # int() of more digits than the interpreter converts
        raise Refused("the JSON has a number with too many digits", param) from None
    if escapes and b"\\u" in raw:
        _check_strings(value, param)
    return value


def may_have_more_values(raw: bytes | bytearray, limit: int) -> bool:
    """Return True if the JSON may have more than `limit` values. The limit bounds memory: a parsed value takes up to
    100 bytes."""
    return len(raw) > limit and max_value_count(raw) > limit


def max_value_count(raw: bytes | bytearray) -> int:
    """Count commas and opening brackets, even inside strings. The JSON has at most one value more than this count."""
    return sum(map(raw.count, (b",", b"[", b"{")))


def _parse_flat(raw: bytes | bytearray) -> object | None:
    """Parse a flat object without escapes. Return None for all other texts.

    The fast parser accepts duplicate keys, so count the quotes. Each pair of quotes belongs to a key or a string value.
    With a duplicate key, the text has more pairs of quotes than the parsed value has keys and string values.
    """
    try:
        value = _FLAT_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the standard parser reports the error
    strings = len(value) + list(map(type, value.values())).count(str)
    return value if raw.count(b'"') == 2 * strings else None


def _parse_nested(raw: bytes | bytearray) -> object | None:
    """Parse a nested object without escapes like `_parse_flat`. Return None for all other texts."""
    try:
        value = _NESTED_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if type(value) is dict and raw.count(b'"') == 2 * _count_strings(value) else None


def _count_strings(value: object) -> int:
    """Count the strings in a value, including keys."""
    if type(value) is str:
        return 1
    if type(value) is dict:
        return len(value) + sum([_count_strings(member) for member in value.values()])
    return sum([_count_strings(item) for item in value]) if type(value) is list else 0


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refused("the JSON has a duplicate key")
    return members


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Refused("the JSON has a number that is out of range")
    return number


def _reject_constant(name: str) -> NoReturn:
    raise Refused(f"{name} is not valid JSON")


_FLAT_DECODER: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
_NESTED_DECODER: Final = msgspec.json.Decoder()
_STANDARD_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_keys, parse_float=_parse_finite, parse_constant=_reject_constant
)


def _check_depth(raw: bytes | bytearray, param: str | None) -> None:
    """Refuse deep nesting before parsing.

    The standard parser recurses, and a dependency of eth-account raises the recursion limit, so deep input would crash
    the process. Each round removes all innermost pairs of brackets. A text of depth d is empty after d rounds.
    """
    brackets = _STRING_PATTERN.sub(b"", raw).translate(_TO_SQUARE_BRACKETS, _NON_BRACKET_BYTES)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    # A remaining pair is nested too deep. Leave unbalanced brackets to the parser, which reports them better, unless
    # there are so many opening brackets that the parser could crash.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise Refused(f"the JSON is nested deeper than {MAX_DEPTH} levels", param)


def _check_strings(root: object, param: str | None) -> None:
    """Refuse NUL and lone surrogates in any string or key."""
    unchecked = [root]
    while unchecked:
        node = unchecked.pop()
        if isinstance(node, str):
            if "\x00" in node:
                raise Refused("a JSON string must not contain NUL", param)
            if not node.isascii() and _SURROGATE_PATTERN.search(node):
                raise Refused("a JSON string must not contain a lone surrogate", param)
        elif isinstance(node, dict):
            unchecked.extend(node)
            unchecked.extend(node.values())
        elif isinstance(node, list):
            unchecked.extend(node)
