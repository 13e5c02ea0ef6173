"""Content ids: read and write CIDs, and compute the CID of a file.

text     "b" ‖ base32 (RFC 4648, lower case, no padding) of
         0x01 (CIDv1) ‖ codec (0x55 raw, 0x70 dag-pb) ‖ 0x12 0x20 (sha2-256, 32 bytes) ‖ digest

file     split into chunks; each chunk is a raw block (a leaf). A file of one chunk is that leaf. Otherwise a
         dag-pb node links up to `width` nodes of the level below, level by level, until one node is left.

node     for each child:  12 <len> ( 0a <len> <cid> ‖ 12 00 ‖ 18 <tree size> )
         then:            0a <len> ( 08 02 ‖ 18 <file size> ‖ for each child 20 <its file size> )
"""

import base64
import binascii
import hashlib
from typing import Final, Literal

import attrs

from common.framing import Piece
from common.refusal import Refused

Codec = Literal["raw", "dag-pb"]

_CODE_BY_CODEC: Final[dict[Codec, int]] = {"raw": 0x55, "dag-pb": 0x70}
_CODEC_BY_CODE: Final[dict[int, Codec]] = {code: codec for codec, code in _CODE_BY_CODEC.items()}
_SHA2_256_PREFIX: Final = b"\x12\x20"
_CIDV1_TEXT_LENGTH: Final = 59
_BASE58_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@attrs.frozen
class Cid:
    """Content id: the codec and the sha2-256 digest of a block."""

    codec: Codec
    digest: bytes

    def encode(self) -> bytes:
        return bytes((1, _CODE_BY_CODEC[self.codec])) + _SHA2_256_PREFIX + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(self.encode()).decode("ascii").rstrip("=").lower()


def parse_cid(text: object, param: str) -> Cid:
    """Read a CIDv1 in base32. Refuse a CIDv0, and any other base, codec or hash."""
    if isinstance(text, str) and len(text) == _CIDV1_TEXT_LENGTH and text.isascii() and text[0] == "b":
        try:
            raw = base64.b32decode(text[1:].upper() + "======")
        except binascii.Error:
            raw = b""
        if len(raw) == 36 and raw[0] == 1 and raw[1] in _CODEC_BY_CODE and raw[2:4] == _SHA2_256_PREFIX:
            cid = Cid(_CODEC_BY_CODE[raw[1]], raw[4:])
            if str(cid) == text:  # reject upper case and stray bits in the last digit
                return cid
    raise Refused(f"{param} must be a CIDv1 in base32 with codec raw or dag-pb and hash sha2-256", param)


def read_store_cid(text: object, param: str) -> Cid:
    """Read the id that a store returned: a CIDv1 in base32 or base58, or a CIDv0."""
    if isinstance(text, str) and len(text) < _CIDV1_TEXT_LENGTH and text[:1] in ("Q", "z"):
        length, digits = (34, text) if text[0] == "Q" else (36, text[1:])
        number = 0
        for character in digits:
            number = number * 58 + (_BASE58_ALPHABET.find(character) if character in _BASE58_ALPHABET else 1 << 512)
        if (
            number < 1 << 8 * length and digits[:1] != "1"
        ):  # a leading 1 encodes a zero byte, but no CID starts with one
            return read_binary_cid(number.to_bytes(length, "big"), param)
    return parse_cid(text, param)


def read_binary_cid(raw: bytes, param: str) -> Cid:
    """Read a CID in bytes: a CIDv1, or a CIDv0, which is only the multihash of a dag-pb block."""
    if len(raw) == 34 and raw[:2] == _SHA2_256_PREFIX:
        return Cid("dag-pb", raw[2:])
    if len(raw) == 36 and raw[0] == 1 and raw[1] in _CODEC_BY_CODE and raw[2:4] == _SHA2_256_PREFIX:
        return Cid(_CODEC_BY_CODE[raw[1]], raw[4:])
    raise Refused(f"{param} must be a CIDv0, or a CIDv1 with codec raw or dag-pb and hash sha2-256", param)


@attrs.frozen
class ImportProfile:
    """Chunk size and node width with which a store imports files. The CID of a file depends on both."""

    chunk_size: int = 1 << 20
    width: int = 1024

    def __attrs_post_init__(self) -> None:
        if self.chunk_size < 1 or self.width < 2:
            raise ValueError("chunk_size must be at least 1 and width at least 2")


@attrs.frozen
class _Link:
    cid: Cid
    file_size: int
    tree_size: int  # total size of the block and all blocks below


class UnixFsHasher:
    """Compute the content id of a file piece by piece. Memory holds only each level's unfinished node."""

    __slots__ = ("_leaf", "_leaf_size", "_levels", "_profile")

    def __init__(self, profile: ImportProfile | None = None) -> None:
        self._profile = profile or ImportProfile()
        self._leaf = hashlib.sha256()
        self._leaf_size = 0
        self._levels: list[list[_Link]] = [[]]

    def update(self, piece: Piece) -> None:
        with memoryview(piece).cast("B") as rest:
            at = 0
            while at < len(rest):
                # Close a full leaf only when more bytes follow, so that `finish` always finds one open leaf.
                if self._leaf_size == self._profile.chunk_size:
                    self._close_leaf()
                length = min(self._profile.chunk_size - self._leaf_size, len(rest) - at)
                self._leaf.update(rest[at : at + length])
                self._leaf_size += length
                at += length

    def finish(self) -> Cid:
        self._close_leaf()
        level = 0
        while level + 1 < len(self._levels) or len(self._levels[level]) > 1:
            self._close_node(level)
            level += 1
        return self._levels[level][0].cid

    def _close_leaf(self) -> None:
        cid = Cid("raw", self._leaf.digest())
        self._add_link(0, _Link(cid, self._leaf_size, self._leaf_size))
        self._leaf = hashlib.sha256()
        self._leaf_size = 0

    def _add_link(self, level: int, link: _Link) -> None:
        # As for leaves, close a full node only when another link follows.
        if len(self._levels[level]) == self._profile.width:
            self._close_node(level)
        self._levels[level].append(link)

    def _close_node(self, level: int) -> None:
        links = self._levels[level]
        file_size = sum(link.file_size for link in links)
        block = _encode_node(links, file_size)
        tree_size = len(block) + sum(link.tree_size for link in links)
        self._levels[level] = []
        if level + 1 == len(self._levels):
            self._levels.append([])
        self._add_link(level + 1, _Link(Cid("dag-pb", hashlib.sha256(block).digest()), file_size, tree_size))


def cid_of(data: Piece, profile: ImportProfile | None = None) -> Cid:
    """Return the content id of a complete file."""
    hasher = UnixFsHasher(profile)
    hasher.update(data)
    return hasher.finish()


def dag_pb_leaf_cid(data: bytes) -> Cid:
    """Return the content id of a one-chunk file whose leaf is a dag-pb node, as in CIDv0 imports."""
    size = _encode_varint(len(data))
    unixfs = b"\x08\x02" + (_encode_field(0x12, data) if data else b"") + b"\x18" + size
    return Cid("dag-pb", hashlib.sha256(_encode_field(0x0A, unixfs)).digest())


def _encode_node(links: list[_Link], file_size: int) -> bytes:
    block = bytearray()
    for link in links:
        body = _encode_field(0x0A, link.cid.encode()) + b"\x12\x00" + b"\x18" + _encode_varint(link.tree_size)
        block += _encode_field(0x12, body)
    unixfs = bytearray(b"\x08\x02\x18" + _encode_varint(file_size))
    for link in links:
        unixfs += b"\x20" + _encode_varint(link.file_size)
    return bytes(block + _encode_field(0x0A, bytes(unixfs)))


def _encode_field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + _encode_varint(len(body)) + body


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
