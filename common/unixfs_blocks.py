"""Check each block of a UnixFS file against its content id, and read its content and links.

This works for every chunk size and node width.

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
_VARINT, _BYTES = 0, 2  # wire types of these messages


@attrs.frozen(slots=True)
class DagBlock:
    """Block of a file: its own content, and links to the blocks that follow."""

    content: bytes
    links: tuple[Cid, ...]


def read_block(cid: Cid, raw: bytes) -> DagBlock:
    """Read a block. Refused if the bytes do not match the id, or are not part of a file."""
    if hashlib.sha256(raw).digest() != cid.digest:
        raise Refused(f"the bytes do not match block {cid}")
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
        raise Refused(f"block {cid} is not part of a file: UnixFS type {kind!r}")
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
            raise Refused("the dag-pb node is malformed or truncated")


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
    raise Refused("the dag-pb node holds an unterminated number")
