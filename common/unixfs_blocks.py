"""Blocks of a UnixFS file: check each block against its content id, and read its content and links.

The blocks prove a file however the file was cut.

node     dag-pb: any number of links  12 <len> ( 0a <len> <cid> ‖ 12 <len> name ‖ 18 tree size ),
         and 0a <len> <data>
data     UnixFS: 08 <type> (0 raw, 2 file) ‖ 12 <len> <content> ‖ 18 file size ‖ 20 size of each child
cid      36 bytes (CIDv1: 01, codec, 12 20, digest) or 34 (CIDv0: 12 20, digest; dag-pb)

The file is the content of its nodes, each before its children, in the order of the links.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import attrs

from common.cid import Cid, read_binary_cid
from common.refusal import Refused

_LINKS, _DATA = 2, 1
_FILES: Final = frozenset({0, 2})
_VARINT, _BYTES = 0, 2  # the two kinds of fields that these messages have


@attrs.frozen(slots=True)
class DagBlock:
    """`content` is of this node alone, `links` name what follows it in the file."""

    content: bytes
    links: tuple[Cid, ...]


def read_block(cid: Cid, raw: bytes) -> DagBlock:
    """Refused where the bytes are not those of the id, or are no part of a file."""
    if hashlib.sha256(raw).digest() != cid.digest:
        raise Refused(f"these are not the bytes of block {cid}")
    if cid.codec == "raw":
        return DagBlock(raw, ())
    links, data = [], b""
    for number, value in _fields(raw):
        if number == _LINKS and isinstance(value, bytes):
            links.append(_linked(value))
        elif number == _DATA and isinstance(value, bytes):
            data = value
    kind, content = None, b""
    for number, value in _fields(data):
        if number == 1:
            kind = value
        elif number == 2 and isinstance(value, bytes):
            content = value
    if kind not in _FILES:
        raise Refused(f"block {cid} is no part of a file: UnixFS type {kind!r}")
    return DagBlock(content, tuple(links))


def _linked(link: bytes) -> Cid:
    named = [value for number, value in _fields(link) if number == 1]
    if len(named) != 1 or not isinstance(named[0], bytes):
        raise Refused("a link must name one block")
    return read_binary_cid(named[0], "link")


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        value, at = _read_varint(raw, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES and at + value <= len(raw):
            yield tag >> 3, raw[at : at + value]
            at += value
        else:
            raise Refused("a node must be made of numbers and of bytes that do not go on behind its end")


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
    raise Refused("a node holds a number without an end")
