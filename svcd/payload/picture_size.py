"""Read a picture's size from its headers, and detect pictures with several frames.

The file is untrusted. Imaging libraries read every chunk before they report a size, and a file of 13 MB can have a
million chunks. This module reads only the headers, in a bounded number of steps. The size must be in the first MiB,
except in a TIFF, whose header gives the offset of the size.

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

_MAX_HEAD_BYTES: Final = 1 << 20
_MAX_PARTS: Final = 20_000  # chunks, segments, boxes or tags of one file
_MAX_GIF_BLOCKS: Final = 100_000  # enough for a GIF of 25 MB

_JPEG_MARKER_PATTERN: Final = re.compile(rb"\xff+([^\xff])", re.DOTALL)
_START_OF_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MARKERS_WITHOUT_SEGMENT: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_NUMBER_FORMATS: Final = {3: "H", 4: "I"}
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})


class UnknownSize(Exception):
    """The picture's format is unknown, or its size cannot be read."""


@attrs.frozen(slots=True)
class PictureSize:
    """Size of a picture. `has_several_frames` is True for an animation or a file with several pictures."""

    width: int
    height: int
    has_several_frames: bool = False


def measure_picture(content: bytes) -> PictureSize:
    """Return the size of the picture. Raise `UnknownSize` if the size cannot be read."""
    head = content[:_MAX_HEAD_BYTES]
    try:
        picture = _measure_by_format(content, head)
    except (struct.error, IndexError):
        raise UnknownSize("the file ends before the picture's size") from None
    if picture.width <= 0 or picture.height <= 0:
        raise UnknownSize("the picture's width or height is 0")
    return picture


def _measure_by_format(content: bytes, head: bytes) -> PictureSize:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _measure_png(content)
    if head.startswith(b"\xff\xd8"):
        return _measure_jpeg(head)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _measure_gif(content)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _measure_webp(head)
    if head.startswith(b"BM"):
        return _measure_bmp(head)
    if head.startswith((b"II*\0", b"MM\0*")):
        return _measure_tiff(content)
    if head[4:8] == b"ftyp":
        return _measure_avif(head)
    raise UnknownSize("the file's format is unknown")


def _measure_png(content: bytes) -> PictureSize:
    length, name, width, height = struct.unpack_from(">I4sII", content, 8)
    if (length, name) != (13, b"IHDR"):
        raise UnknownSize("the PNG does not begin with an IHDR chunk")
    has_several_frames = False
    offset = 33
    for _ in range(_MAX_PARTS):
        length, name = struct.unpack_from(">I4s", content, offset)
        if name == b"IDAT":
            return PictureSize(width, height, has_several_frames)
        if name == b"acTL":
            (frames,) = struct.unpack_from(">I", content, offset + 8)
            has_several_frames = has_several_frames or frames != 1
        offset += 12 + length
    raise _too_many_parts_error()


def _measure_jpeg(head: bytes) -> PictureSize:
    picture = None
    offset = 2
    for _ in range(_MAX_PARTS):
        found = _JPEG_MARKER_PATTERN.match(head, offset)
        if found is None:
            raise UnknownSize("the file ends before the picture's size")
        marker, offset = found[1][0], found.end()
        if marker in _MARKERS_WITHOUT_SEGMENT:
            continue
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            if picture is None:
                raise UnknownSize("the JPEG has no size before its image data")
            return picture
        if marker in _START_OF_FRAME_MARKERS:
            if picture is not None:
                raise UnknownSize("the JPEG has two sizes")
            height, width = struct.unpack_from(">HH", head, offset + 3)
            picture = PictureSize(width, height)
        offset += max(2, struct.unpack_from(">H", head, offset)[0])
    raise _too_many_parts_error()


def _measure_gif(content: bytes) -> PictureSize:
    """Return the size of the screen, enlarged to include a picture that extends beyond the screen."""
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    offset = 13 + _palette_bytes(flags)
    blocks = iter(range(_MAX_GIF_BLOCKS))
    pictures = 0
    for _ in blocks:
        kind = content[offset : offset + 1]
        if kind in (b";", b""):
            break
        if kind == b"!":
            offset = _skip_blocks(content, offset + 2, blocks)
        elif kind == b",":
            left, top, across, down, flags = struct.unpack_from("<HHHHB", content, offset + 1)
            pictures += 1
            if pictures > 1:
                return PictureSize(width, height, has_several_frames=True)
            width, height = max(width, left + across), max(height, top + down)
            offset = _skip_blocks(content, offset + 11 + _palette_bytes(flags), blocks)
        elif kind == b"\0":
            offset += 1
        else:
            raise UnknownSize("the GIF has a block of unknown kind")
    else:
        raise _too_many_parts_error()
    if not pictures:
        raise UnknownSize("the GIF has no picture")
    return PictureSize(width, height)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(content: bytes, offset: int, blocks: Iterator[int]) -> int:
    """Return the position after the data blocks. Each block starts with its length, and the last block is empty."""
    for _ in blocks:
        length = content[offset]
        offset += 1 + length
        if not length:
            return offset
    raise _too_many_parts_error()


def _measure_webp(head: bytes) -> PictureSize:
    match head[12:16]:
        case b"VP8X":
            flags, width, height = head[20], _read_uint24(head, 24), _read_uint24(head, 27)
            return PictureSize(width + 1, height + 1, has_several_frames=bool(flags & 2))
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", head, 26)
            return PictureSize(width & 0x3FFF, height & 0x3FFF)
        case b"VP8L" if head[20:21] == b"\x2f":
            (bits,) = struct.unpack_from("<I", head, 21)
            return PictureSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    raise UnknownSize("the WebP header has no size")


def _read_uint24(head: bytes, offset: int) -> int:
    low, high = struct.unpack_from("<HB", head, offset)
    return int(low | high << 16)


def _measure_bmp(head: bytes) -> PictureSize:
    (length,) = struct.unpack_from("<I", head, 14)
    if length == 12:
        return PictureSize(*struct.unpack_from("<HH", head, 18))
    if length < 40:
        raise UnknownSize("the BMP header has no size")
    width, height = struct.unpack_from("<ii", head, 18)
    return PictureSize(width, abs(height))  # a negative height means rows from top to bottom


def _measure_tiff(content: bytes) -> PictureSize:
    order = "<" if content.startswith(b"II") else ">"
    (offset,) = struct.unpack_from(order + "I", content, 4)
    (tags,) = struct.unpack_from(order + "H", content, offset)
    if tags > _MAX_PARTS:
        raise _too_many_parts_error()
    sizes: dict[int, int] = {}
    for entry in range(offset + 2, offset + 2 + 12 * tags, 12):
        tag, kind, count = struct.unpack_from(order + "HHI", content, entry)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT):
            if tag in sizes or kind not in _TIFF_NUMBER_FORMATS or count != 1:
                raise UnknownSize("the TIFF header has no size")
            (sizes[tag],) = struct.unpack_from(order + _TIFF_NUMBER_FORMATS[kind], content, entry + 8)
    (following,) = struct.unpack_from(order + "I", content, offset + 2 + 12 * tags)
    if len(sizes) != 2:
        raise UnknownSize("the TIFF header has no size")
    return PictureSize(sizes[_TIFF_WIDTH], sizes[_TIFF_HEIGHT], has_several_frames=following != 0)


def _measure_avif(head: bytes) -> PictureSize:
    """Return the largest size, because a tiled picture also lists the sizes of its tiles."""
    pieces = iter(range(_MAX_PARTS))
    _, begin, end = next(_read_boxes(head, 0, len(head), pieces))
    brands = {head[begin : begin + 4], *(head[offset : offset + 4] for offset in range(begin + 8, min(end, 4096), 4))}
    if not brands & _AVIF_BRANDS:
        raise UnknownSize("the file's format is unknown")
    place = (0, len(head))
    for name, prefix in ((b"meta", 4), (b"iprp", 0), (b"ipco", 0)):
        inner = next(((b + prefix, e) for kind, b, e in _read_boxes(head, *place, pieces) if kind == name), None)
        if inner is None:
            raise UnknownSize("the AVIF header has no size")
        place = inner
    sizes = [
        struct.unpack_from(">II", head, begin + 4)
        for kind, begin, _ in _read_boxes(head, *place, pieces)
        if kind == b"ispe"
    ]
    width, height = max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))
    return PictureSize(width, height, has_several_frames=b"avis" in brands)


def _read_boxes(head: bytes, offset: int, end: int, pieces: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and end of each box's content."""
    for _ in pieces:
        if offset + 8 > end:
            return
        length, kind = struct.unpack_from(">I4s", head, offset)
        begin = offset + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", head, begin)
            begin += 8
        box_end = offset + length if length else end
        if box_end < begin:
            raise UnknownSize("the AVIF has malformed boxes")
        yield kind, begin, min(box_end, end)
        offset = box_end
    raise _too_many_parts_error()


def _too_many_parts_error() -> UnknownSize:
    return UnknownSize(
        f"the file has too many parts: at most {_MAX_PARTS}, or {_MAX_GIF_BLOCKS} blocks in a GIF, are read"
    )
