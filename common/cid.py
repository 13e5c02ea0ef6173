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

_CODES: Final[dict[Codec, int]] = {"raw": 0x55, "dag-pb": 0x70}
_CODECS: Final[dict[int, Codec]] = {code: codec for codec, code in _CODES.items()}
_SHA2_256: Final = b"\x12\x20"
_TEXT_LENGTH: Final = 59
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@attrs.frozen
class Cid:
    """Content id: the codec and the sha2-256 digest of a block."""

    codec: Codec
    digest: bytes

    def encode(self) -> bytes:
        return bytes((1, _CODES[self.codec])) + _SHA2_256 + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(self.encode()).decode("ascii").rstrip("=").lower()


def parse_cid(text: object, param: str) -> Cid:
    """Read a CIDv1 in base32. Refuses CIDv0, and other bases, codecs and hashes."""
    if isinstance(text, str) and len(text) == _TEXT_LENGTH and text.isascii() and text[0] == "b":
        try:
            raw = base64.b32decode(text[1:].upper() + "======")
        except binascii.Error:
            raw = b""
        if len(raw) == 36 and raw[0] == 1 and raw[1] in _CODECS and raw[2:4] == _SHA2_256:
            cid = Cid(_CODECS[raw[1]], raw[4:])
            if str(cid) == text:  # reject upper case and stray bits in the last digit
                return cid
    raise Refused(f"{param} must be a CIDv1 in base32: raw or dag-pb, sha2-256", param)


def read_cid(text: object, param: str) -> Cid:
    """Read the id that a store returned: a CIDv1 in base32 or base58, or a CIDv0."""
    if isinstance(text, str) and len(text) < _TEXT_LENGTH and text[:1] in ("Q", "z"):
        length, digits = (34, text) if text[0] == "Q" else (36, text[1:])
        number = 0
        for character in digits:
            number = number * 58 + (_BASE58.find(character) if character in _BASE58 else 1 << 512)
        if number < 1 << 8 * length and digits[:1] != "1":  # a leading 1 encodes a zero byte
            return read_binary_cid(number.to_bytes(length, "big"), param)
    return parse_cid(text, param)


def read_binary_cid(raw: bytes, param: str) -> Cid:
    """Read the binary CID of a link: a CIDv1, or a CIDv0, which is the bare multihash of a dag-pb block."""
    if len(raw) == 34 and raw[:2] == _SHA2_256:
        return Cid("dag-pb", raw[2:])
    if len(raw) == 36 and raw[0] == 1 and raw[1] in _CODECS and raw[2:4] == _SHA2_256:
        return Cid(_CODECS[raw[1]], raw[4:])
    raise Refused(f"{param} must be a CIDv1 of raw or dag-pb, or a CIDv0, and sha2-256", param)


@attrs.frozen
class ImportProfile:
    """Chunk size and node width with which a store imports files. The CID of a file depends on both."""

    chunk_size: int = 1 << 20
    width: int = 1024

    def __attrs_post_init__(self) -> None:
        if self.chunk_size < 1 or self.width < 2:
            raise ValueError("chunks hold at least one byte and nodes at least two links")


@attrs.frozen
class _Link:
    cid: Cid
    file_size: int
    tree_size: int  # of all blocks below and including this one


class UnixFsHasher:
    """Compute the content id of a file piece by piece. Keeps only the open links of each level."""

    __slots__ = ("_in_leaf", "_leaf", "_levels", "_profile")

    def __init__(self, profile: ImportProfile | None = None) -> None:
        self._profile = profile or ImportProfile()
        self._leaf = hashlib.sha256()
        self._in_leaf = 0
        self._levels: list[list[_Link]] = [[]]

    def update(self, piece: Piece) -> None:
        with memoryview(piece).cast("B") as rest:
            at = 0
            while at < len(rest):
                # Close a full leaf only when more bytes follow: every file then ends with one open leaf.
                if self._in_leaf == self._profile.chunk_size:
                    self._close_leaf()
                taken = min(self._profile.chunk_size - self._in_leaf, len(rest) - at)
                self._leaf.update(rest[at : at + taken])
                self._in_leaf += taken
                at += taken

    def finish(self) -> Cid:
        self._close_leaf()
        level = 0
        while level + 1 < len(self._levels) or len(self._levels[level]) > 1:
            self._close_node(level)
            level += 1
        return self._levels[level][0].cid

    def _close_leaf(self) -> None:
        cid = Cid("raw", self._leaf.digest())
        self._add(0, _Link(cid, self._in_leaf, self._in_leaf))
        self._leaf = hashlib.sha256()
        self._in_leaf = 0

    def _add(self, level: int, link: _Link) -> None:
        # As for leaves, close a full node only when another link follows.
        if len(self._levels[level]) == self._profile.width:
            self._close_node(level)
        self._levels[level].append(link)

    def _close_node(self, level: int) -> None:
        links = self._levels[level]
        file_size = sum(link.file_size for link in links)
        block = _node(links, file_size)
        tree_size = len(block) + sum(link.tree_size for link in links)
        self._levels[level] = []
        if level + 1 == len(self._levels):
            self._levels.append([])
        self._add(level + 1, _Link(Cid("dag-pb", hashlib.sha256(block).digest()), file_size, tree_size))


def cid_of(data: Piece, profile: ImportProfile | None = None) -> Cid:
    """Return the content id of a complete file."""
    hasher = UnixFsHasher(profile)
    hasher.update(data)
    return hasher.finish()


def dag_leaf(data: bytes) -> Cid:
    """Return the id of a one-chunk file with a dag-pb leaf, as in CIDv0 imports."""
    size = _varint(len(data))
    unixfs = b"\x08\x02" + (_field(0x12, data) if data else b"") + b"\x18" + size
    return Cid("dag-pb", hashlib.sha256(_field(0x0A, unixfs)).digest())


def _node(links: list[_Link], file_size: int) -> bytes:
    block = bytearray()
    for link in links:
        body = _field(0x0A, link.cid.encode()) + b"\x12\x00" + b"\x18" + _varint(link.tree_size)
        block += _field(0x12, body)
    unixfs = bytearray(b"\x08\x02\x18" + _varint(file_size))
    for link in links:
        unixfs += b"\x20" + _varint(link.file_size)
    return bytes(block + _field(0x0A, bytes(unixfs)))


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
