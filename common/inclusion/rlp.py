"""RLP, Ethereum's encoding of byte strings and nested lists. Decoding accepts only canonical encodings.

0x00…0x7f                    the byte itself
0x80 + n ‖ n bytes           a string of up to 55 bytes
0xb7 + k ‖ n (k) ‖ n bytes   a longer string; its length has k bytes, without leading zeros
0xc0 + n, 0xf7 + k           a list, in the same way; n is the length of its encoded items
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from common.refusal import Refused

Item: TypeAlias = bytes | Sequence["Item"]

_MAX_DEPTH: Final = 16


def encode(item: Item) -> bytes:
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _length_prefix(0x80, len(item)) + item
    body = b"".join(map(encode, item))
    return _length_prefix(0xC0, len(body)) + body


def integer_content(value: int) -> bytes:
    """Return an integer as the byte string that RLP encodes: big-endian without leading zeros, empty for zero."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")  # raises OverflowError for a negative value


def decode(raw: bytes, param: str | None = None) -> Item:
    """Decode a single item. Refuse malformed or trailing bytes."""
    item, end = _decode_item(raw, 0, len(raw), param, 0)
    if end != len(raw):
        raise Refused(f"{_subject(param)} has trailing bytes", param)
    return item


def decode_list(raw: bytes, param: str | None = None) -> list[Item]:
    item = decode(raw, param)
    if not isinstance(item, list):
        raise Refused(f"{_subject(param)} must be an RLP list", param)
    return item


def read_string(item: Item, param: str | None = None, length: int | None = None) -> bytes:
    """Return `item` as bytes. Refuse a list, and a string that does not have `length` bytes."""
    if not isinstance(item, bytes) or (length is not None and len(item) != length):
        raise Refused(
            f"{_subject(param)} must be a byte string{'' if length is None else f' of {length} bytes'}", param
        )
    return item


def read_integer(item: Item, param: str | None = None) -> int:
    raw = read_string(item, param)
    if raw[:1] == b"\0":
        raise Refused(f"{_subject(param)} must be an integer without leading zeros", param)
    return int.from_bytes(raw, "big")


def _length_prefix(kind: int, length: int) -> bytes:
    if length < 56:
        return bytes((kind + length,))
    size = integer_content(length)
    return bytes((kind + 55 + len(size),)) + size


def _decode_item(raw: bytes, at: int, end: int, param: str | None, depth: int) -> tuple[Item, int]:
    """Return the item that starts at `at`, and its end."""
    if at >= end or depth > _MAX_DEPTH:
        raise Refused(f"{_subject(param)} is not valid RLP", param)
    first = raw[at]
    if first < 0x80:
        return raw[at : at + 1], at + 1
    kind = 0xC0 if first >= 0xC0 else 0x80
    start, length = _decode_length(raw, at, end, kind, param)
    stop = start + length
    if stop > end:
        raise Refused(f"{_subject(param)} is truncated", param)
    if kind == 0x80:
        if length == 1 and raw[start] < 0x80:
            raise Refused(
                f"{_subject(param)} encodes a single byte below 0x80 with a length prefix, which is not canonical",
                param,
            )
        return raw[start:stop], stop
    items: list[Item] = []
    while start < stop:
        item, start = _decode_item(raw, start, stop, param, depth + 1)
        items.append(item)
    return items, stop


def _decode_length(raw: bytes, at: int, end: int, kind: int, param: str | None) -> tuple[int, int]:
    """Return the start and the length of the content of a string or list."""
    short = raw[at] - kind
    if short < 56:
        return at + 1, short
    start = at + 1 + short - 55
    size = raw[at + 1 : min(start, end)]
    length = int.from_bytes(size, "big")
    if len(size) != short - 55 or size[0] == 0 or length < 56:
        raise Refused(f"{_subject(param)} encodes a length that is not canonical", param)
    return start, length


def _subject(param: str | None) -> str:
    return param or "the encoding"
