"""JSON with one meaning per text, and one text per value.

`parse` refuses what parsers disagree about: duplicate keys, NaN and infinities (also spelled 1e400), NUL and
lone surrogates, deep nesting, a byte order mark, bytes that are not UTF-8.

`canonical` writes RFC 8785 (JCS), so any of its implementations reproduces it: keys sorted by their UTF-16
code units, no spaces, only the escapes that JSON.stringify uses, numbers as ECMAScript writes them. Beyond
the RFC, a number written as an integer must be within ±(2^53−1): above that, JavaScript would change it.
"""

import json
import math
import re
from json.encoder import encode_basestring
from typing import Final, NoReturn

import msgspec

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

MAX_DEPTH: Final = 32

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def parse(raw: bytes | bytearray, param: str | None = None) -> object:
    """The value of a JSON text; `Refused` carries `param` and no code."""
    # All but the decoding costs about as much as it does, and few texts need it: without so many brackets nothing is
    # deep, and after a strict UTF-8 decode only a \u escape can bring a NUL or a lone surrogate.
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


# An object from a text without escapes, as most bodies and lines are; None for all else, and for what is wrong.
#
# A parser of several times the speed reads it. What that one lets pass and we do not is a duplicate key, and here a
# count shows it: each pair of quotes is a name or a string, and a duplicate leaves fewer of them.


def _flat(raw: bytes | bytearray) -> object | None:
    """That nests nothing, as the bodies of submissions: its strings are counted at once, and depth is no question."""
    try:
        value = _FLAT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the other parsers say why
    strings = len(value) + list(map(type, value.values())).count(str)
    return value if raw.count(b'"') == 2 * strings else None


def _nested(raw: bytes | bytearray) -> object | None:
    try:
        value = _NESTED.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if type(value) is dict and raw.count(b'"') == 2 * _strings(value) else None


def _strings(value: object) -> int:
    """How many strings there are in a value, names included."""
    if type(value) is str:
        return 1
    if type(value) is dict:
        return len(value) + sum([_strings(member) for member in value.values()])
    return sum([_strings(item) for item in value]) if type(value) is list else 0


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value. Refuses what `parse` would refuse, and integers that are not safe."""
    written: list[str] = []
    _write(value, written, 0)
    try:
        return "".join(written).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("JSON strings hold no lone surrogates") from None


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
    """Before the parse, on the bytes alone: the stdlib's scanner recurses, and where a library has raised the
    interpreter's recursion limit (one that eth-account brings does), deep input ends the process.

    Each round takes away every innermost pair of brackets, so that a text of depth d is empty after d rounds.
    """
    brackets = _STRING.sub(b"", raw).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    # A pair that is left is too deep; brackets without a partner are what the parser says best, unless they open
    # so deep themselves.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise Refused(f"the JSON nests deeper than {MAX_DEPTH}", param)


def _check_texts(root: object, param: str | None) -> None:
    """Every string and key."""
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
        raise TypeError(f"{type(value).__name__} is no JSON type")


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
    """Python and ECMAScript agree on the shortest digits; they differ in when and how to write exponents."""
    shortest = repr(number)
    mantissa, _, exponent = shortest.partition("e")
    if not exponent:
        return shortest
    if int(exponent) >= -6 and exponent.startswith("-"):
        sign = "-" if number < 0 else ""
        digits = mantissa.lstrip("-").replace(".", "")
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits}"
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
