"""Read the size of a picture, and whether it has several frames, from its headers.

The file is untrusted. Imaging libraries read every chunk before they report a size, and 13 MB can have a million
chunks. This module reads only the headers, in a bounded number of steps. The size must be in the first MiB, or for a
TIFF at the place that the first MiB points to.

    PNG     signature, IHDR (size), chunks …, acTL (an animation), IDAT
    JPEG    SOI, segments …, SOFn (size), segments …, SOS
    GIF     screen (size), then per picture: extensions …, its place on the screen, data in blocks of 255 bytes
    WebP    RIFF, then VP8X (size, animation), VP8 (size) or VP8L (size)
    BMP     file header, then a header that begins with its own length and the size
    TIFF    the first directory: tags (size), and the place of the next directory
    AVIF    ftyp (brands), meta { iprp { ipco { ispe (size) … } } }
"""

import re
import struct
from collections.abc import Iterator
from typing import Final

import attrs

_HEAD_BYTES: Final = 1 << 20
# Chunks, segments, boxes or tags.
_MAX_PIECES: Final = 20_000
# 25 MB.
_MAX_GIF_BLOCKS: Final = 100_000

_MARKER: Final = re.compile(rb"\xff+([^\xff])", re.DOTALL)
_START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MARKERS_WITHOUT_SEGMENT: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_NUMBERS: Final = {3: "H", 4: "I"}
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})


class UnknownSize(Exception):
    """The format is unknown, or the size is missing."""


@attrs.frozen(slots=True)
class Picture:
    width: int
    height: int
    several: bool = False


def measure(content: bytes) -> Picture:
    """Return the size and kind of the picture. Raise `UnknownSize` if it cannot be read."""
    head = content[:_HEAD_BYTES]
    try:
        picture = _measured(content, head)
    except (struct.error, IndexError):
        raise UnknownSize("it ends before its size") from None
    if picture.width <= 0 or picture.height <= 0:
        raise UnknownSize("it has no size")
    return picture


def _measured(content: bytes, head: bytes) -> Picture:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(content)
    if head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _gif(content)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp(head)
    if head.startswith(b"BM"):
        return _bmp(head)
    if head.startswith((b"II*\0", b"MM\0*")):
        return _tiff(content)
    if head[4:8] == b"ftyp":
        return _avif(head)
    raise UnknownSize("its format is unknown")


def _png(content: bytes) -> Picture:
    length, name, width, height = struct.unpack_from(">I4sII", content, 8)
    if (length, name) != (13, b"IHDR"):
        raise UnknownSize("it does not begin with its size")
    several = False
    at = 33
    for _ in range(_MAX_PIECES):
        length, name = struct.unpack_from(">I4s", content, at)
        if name == b"IDAT":
            return Picture(width, height, several)
        if name == b"acTL":
            (frames,) = struct.unpack_from(">I", content, at + 8)
            several = several or frames != 1
        at += 12 + length
    raise _too_many()


def _jpeg(head: bytes) -> Picture:
    picture = None
    at = 2
    for _ in range(_MAX_PIECES):
        found = _MARKER.match(head, at)
        if found is None:
            raise UnknownSize("it ends before its size")
        marker, at = found[1][0], found.end()
        if marker in _MARKERS_WITHOUT_SEGMENT:
            continue
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            if picture is None:
                raise UnknownSize("it has no size before its data")
            return picture
        if marker in _START_OF_FRAME:
            if picture is not None:
                raise UnknownSize("it has two sizes")
            height, width = struct.unpack_from(">HH", head, at + 3)
            picture = Picture(width, height)
        at += max(2, struct.unpack_from(">H", head, at)[0])
    raise _too_many()


def _gif(content: bytes) -> Picture:
    """Return the size of the screen, enlarged by frames that exceed it."""
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at = 13 + _palette(flags)
    blocks = iter(range(_MAX_GIF_BLOCKS))
    pictures = 0
    for _ in blocks:
        kind = content[at : at + 1]
        if kind in (b";", b""):
            break
        if kind == b"!":
            at = _skip_blocks(content, at + 2, blocks)
        elif kind == b",":
            left, top, across, down, flags = struct.unpack_from("<HHHHB", content, at + 1)
            pictures += 1
            if pictures > 1:
                return Picture(width, height, several=True)
            width, height = max(width, left + across), max(height, top + down)
            at = _skip_blocks(content, at + 11 + _palette(flags), blocks)
        elif kind == b"\0":
            at += 1
        else:
            raise UnknownSize("it holds what no GIF does")
    else:
        raise _too_many()
    if not pictures:
        raise UnknownSize("it holds no picture")
    return Picture(width, height)


def _palette(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(content: bytes, at: int, blocks: Iterator[int]) -> int:
    """Return the position after the data blocks. Each starts with its length, and an empty block is the last."""
    for _ in blocks:
        length = content[at]
        at += 1 + length
        if not length:
            return at
    raise _too_many()


def _webp(head: bytes) -> Picture:
    match head[12:16]:
        case b"VP8X":
            flags, width, height = head[20], _three(head, 24), _three(head, 27)
            return Picture(width + 1, height + 1, several=bool(flags & 2))
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", head, 26)
            return Picture(width & 0x3FFF, height & 0x3FFF)
        case b"VP8L" if head[20:21] == b"\x2f":
            (bits,) = struct.unpack_from("<I", head, 21)
            return Picture((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    raise UnknownSize("it has no size where a WebP does")


def _three(head: bytes, at: int) -> int:
    low, high = struct.unpack_from("<HB", head, at)
    return int(low | high << 16)


def _bmp(head: bytes) -> Picture:
    (length,) = struct.unpack_from("<I", head, 14)
    if length == 12:
        return Picture(*struct.unpack_from("<HH", head, 18))
    if length < 40:
        raise UnknownSize("it has no size where a BMP does")
    width, height = struct.unpack_from("<ii", head, 18)
    return Picture(width, abs(height))  # below zero: from the top down


def _tiff(content: bytes) -> Picture:
    order = "<" if content.startswith(b"II") else ">"
    (at,) = struct.unpack_from(order + "I", content, 4)
    (tags,) = struct.unpack_from(order + "H", content, at)
    if tags > _MAX_PIECES:
        raise _too_many()
    sizes: dict[int, int] = {}
    for entry in range(at + 2, at + 2 + 12 * tags, 12):
        tag, kind, count = struct.unpack_from(order + "HHI", content, entry)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT):
            if tag in sizes or kind not in _TIFF_NUMBERS or count != 1:
                raise UnknownSize("it has no size where a TIFF does")
            (sizes[tag],) = struct.unpack_from(order + _TIFF_NUMBERS[kind], content, entry + 8)
    (following,) = struct.unpack_from(order + "I", content, at + 2 + 12 * tags)
    if len(sizes) != 2:
        raise UnknownSize("it has no size where a TIFF does")
    return Picture(sizes[_TIFF_WIDTH], sizes[_TIFF_HEIGHT], several=following != 0)


def _avif(head: bytes) -> Picture:
    """Return the largest size, because a tiled picture also lists the sizes of its tiles."""
    pieces = iter(range(_MAX_PIECES))
    _, begin, end = next(_boxes(head, 0, len(head), pieces))
    brands = {head[begin : begin + 4], *(head[at : at + 4] for at in range(begin + 8, min(end, 4096), 4))}
    if not brands & _AVIF_BRANDS:
        raise UnknownSize("its format is unknown")
    place = (0, len(head))
    for name, prefix in ((b"meta", 4), (b"iprp", 0), (b"ipco", 0)):
        inner = next(((b + prefix, e) for kind, b, e in _boxes(head, *place, pieces) if kind == name), None)
        if inner is None:
            raise UnknownSize("it has no size where an AVIF does")
        place = inner
    sizes = [
        struct.unpack_from(">II", head, begin + 4) for kind, begin, _ in _boxes(head, *place, pieces) if kind == b"ispe"
    ]
    width, height = max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))
    return Picture(width, height, several=b"avis" in brands)


def _boxes(head: bytes, at: int, end: int, pieces: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and end of each box's content."""
    for _ in pieces:
        if at + 8 > end:
            return
        length, kind = struct.unpack_from(">I4s", head, at)
        begin = at + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", head, begin)
            begin += 8
        behind = at + length if length else end
        if behind < begin:
            raise UnknownSize("its boxes are malformed")
        yield kind, begin, min(behind, end)
        at = behind
    raise _too_many()


def _too_many() -> UnknownSize:
    return UnknownSize("it is made of more pieces than any picture needs")
