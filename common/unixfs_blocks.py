"""Check the blocks of a UnixFS file against their content ids, and read their content and links.

Any chunk size and node width is supported.

node     dag-pb: any number of links  12 <len> ( 0a <len> <cid> ‖ 12 <len> name ‖ 18 tree size ),
         and 0a <len> <data>
data     UnixFS: 08 <type> (0 raw, 2 file) ‖ 12 <len> <content> ‖ 18 file size ‖ 20 size of each child
cid      36 bytes (CIDv1: 01, codec, 12 20, digest) or 34 (CIDv0: 12 20, digest; dag-pb)

The content of a file is the content of its nodes in depth-first order: first a node, then its children in link order.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import attrs

from common.cid import Cid, read_binary_cid
from common.refusal import Refused

_LINKS_FIELD, _DATA_FIELD = 2, 1  # protobuf fields of a dag-pb node
_FILE_TYPES: Final = frozenset({0, 2})  # raw, file
_WIRE_VARINT, _WIRE_BYTES = 0, 2  # protobuf wire types


@attrs.frozen(slots=True)
class DagBlock:
    """Block of a file: the block's own content, and links to its child blocks."""

    content: bytes
    links: tuple[Cid, ...]


def read_unixfs_block(cid: Cid, raw: bytes) -> DagBlock:
    """Read a block. Refuse bytes that do not match the content id, or are not part of a file."""
    if hashlib.sha256(raw).digest() != cid.digest:
        raise Refused(f"the bytes do not match block {cid}")
    if cid.codec == "raw":
        return DagBlock(raw, ())
    links, data = [], b""
    for number, value in _protobuf_fields(raw):
        if number == _LINKS_FIELD and isinstance(value, bytes):
            links.append(_linked_cid(value))
        elif number == _DATA_FIELD and isinstance(value, bytes):
            data = value
    kind, content = None, b""
    for number, value in _protobuf_fields(data):
        if number == 1:
            kind = value
        elif number == 2 and isinstance(value, bytes):
            content = value
    if kind not in _FILE_TYPES:
        raise Refused(f"block {cid} is not part of a file: UnixFS type {kind!r}")
    return DagBlock(content, tuple(links))


def _linked_cid(link: bytes) -> Cid:
    cids = [value for number, value in _protobuf_fields(link) if number == 1]
    if len(cids) != 1 or not isinstance(cids[0], bytes):
        raise Refused("a link of a dag-pb node must have exactly one content id")
    return read_binary_cid(cids[0], "link")


def _protobuf_fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        value, at = _read_varint(raw, at)
        if tag & 7 == _WIRE_VARINT:
            yield tag >> 3, value
        elif tag & 7 == _WIRE_BYTES and at + value <= len(raw):
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
    raise Refused("the dag-pb node has a varint that does not end")
