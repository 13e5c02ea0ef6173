"""Media in an input, and image sizes read from headers, compared with a library that decodes the whole file."""

import base64
import struct
import time
import zlib
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from svcd.base.end_reasons import WorkFailed
from svcd.payload.media import check_media
from svcd.payload.picture_size import PictureSize, UnknownSize, measure_picture

# Pillow reads the size, and fails with IndexError when it searches for a second frame. With the extra bytes it fails
# with struct.error.
GIF_CUT_AFTER_ITS_PICTURE = bytes.fromhex(
    "47494638376104000400810000ff00000000000000000000002c00000000040004000008090001081c48b02080800021"
)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def picture(width: int, height: int, kind: str = "PNG", frames: int = 1) -> bytes:
    file = BytesIO()
    shades = [Image.new("L", (width, height), 80 * index) for index in range(frames)]
    shades[0].save(file, kind, **({"save_all": True, "append_images": shades[1:]} if frames > 1 else {}))
    return file.getvalue()


def still(content: bytes, width: int, height: int) -> dict[str, object]:
    return {"b64": encoded(content), "media_type": "image/png", "width": width, "height": height}


def header_only(width: int, height: int) -> bytes:
    """Return a PNG that has a size but no pixels."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_still_that_keeps_to_its_declaration_passes(kind: str) -> None:
    check_media({"image": still(picture(20, 10, kind), 20, 10)})


def test_a_still_may_be_smaller_than_declared_or_lie_on_its_side() -> None:
    check_media({"image": still(picture(20, 10), 21, 10), "end_image": still(picture(20, 10), 10, 20)})


def test_clips_and_audios_are_taken_at_their_declared_sizes() -> None:
    clip = {"b64": "AAAA", "media_type": "video/mp4", "width": 64, "height": 64, "duration_secs": 3}
    check_media({"video": clip, "reference_audios": [{"b64": "AAAA", "media_type": "audio/wav"}]})


@pytest.mark.parametrize(
    ("content", "width", "height"),
    [
        (picture(20, 10), 19, 10),
        (picture(20, 10, "JPEG"), 1, 1),
        (header_only(4000, 4000), 100, 100),
        (header_only(30_000, 30_000), 100, 100),
        (picture(20, 10, "GIF", frames=2), 20, 10),
        (picture(20, 10, "WEBP", frames=2), 20, 10),
        (picture(20, 10)[:20], 20, 10),
        (GIF_CUT_AFTER_ITS_PICTURE, 4, 4),
        (GIF_CUT_AFTER_ITS_PICTURE + bytes.fromhex("f90401000001002c"), 4, 4),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n%%EndComments\n", 20, 10),
        (b"no picture", 20, 10),
    ],
    ids=[
        "wider",
        "far larger",
        "4000² in a few bytes",
        "a bomb",
        "moving gif",
        "moving webp",
        "cut",
        "cut gif",
        "other cut gif",
        "eps",
        "noise",
    ],
)
def test_oversized_or_unmeasurable_still_is_refused(content: bytes, width: int, height: int) -> None:
    with pytest.raises(WorkFailed) as failed:
        check_media({"reference_images": [still(picture(2, 2), 2, 2), still(content, width, height)]})
    assert failed.value.reason == "media_input_refused"
    assert "reference_images[1]" in failed.value.detail


@pytest.mark.parametrize(
    "model_input",
    [
        {"image": still(picture(2, 2), 3840, 2161)},
        {"image": {"b64": "A===", "media_type": "image/png", "width": 1, "height": 1}},
        {"video": {"b64": "AAAA", "media_type": "video/mp4", "width": 1, "height": 1, "duration_secs": 61}},
        {"reference_images": [still(picture(2, 2), 2, 2)] * 10},
    ],
    ids=["too many pixels", "no base64", "a long clip", "too many"],
)
def test_malformed_or_oversized_media_is_refused(model_input: dict[str, object]) -> None:
    with pytest.raises(WorkFailed) as failed:
        check_media(model_input)
    assert failed.value.reason == "media_input_refused"


KINDS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
MOVING = ("PNG", "GIF", "WEBP", "TIFF", "AVIF")
BOUND = 0.5  # CPU seconds; a decoder took 7 to 12 for each file
MANY = 1_100_000


def saved(kind: str, width: int, height: int, frames: int = 1, mode: str = "RGB", **options: Any) -> bytes:
    file = BytesIO()
    pictures = [Image.effect_noise((width, height), 10 + index).convert(mode) for index in range(frames)]
    if frames > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 10), (301, 17), (1, 700)])
def test_size_is_what_a_library_reads(kind: str, width: int, height: int) -> None:
    assert measure_picture(saved(kind, width, height)) == PictureSize(width, height)


@pytest.mark.parametrize("kind", MOVING)
def test_several_frames_are_seen(kind: str) -> None:
    assert measure_picture(saved(kind, 20, 10, frames=3)).has_several_frames


VARIANTS: dict[str, bytes] = {
    "webp without loss": saved("WEBP", 33, 22, lossless=True),
    "webp with a profile and transparency": saved("WEBP", 33, 22, mode="RGBA", icc_profile=b"p" * 300),
    "progressive jpeg": saved("JPEG", 33, 22, progressive=True),
    "grey jpeg with metadata": saved("JPEG", 33, 22, mode="L", exif=b"Exif\0\0" + bytes(500), comment=b"c" * 900),
    "png of a palette": saved("PNG", 33, 22, mode="P"),
    "png with a large profile": saved("PNG", 33, 22, icc_profile=bytes(range(256)) * 6000),
    "interlaced gif of a palette": saved("GIF", 33, 22, mode="P", interlace=1, comment=b"c" * 900),
    "tiff of the other order": saved("TIFF", 33, 22, mode="L", big_tiff=False, compression="tiff_lzw"),
    "bmp from the top down": saved("BMP", 33, 22).replace(struct.pack("<ii", 33, 22), struct.pack("<ii", 33, -22), 1),
    "gif without its trailer": saved("GIF", 33, 22).removesuffix(b";"),
}


@pytest.mark.parametrize("content", VARIANTS.values(), ids=VARIANTS.keys())
def test_size_is_found_in_every_variant_of_a_format(content: bytes) -> None:
    assert measure_picture(content) == PictureSize(33, 22)


def segment(marker: int, data: bytes = b"") -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def frame(width: int, height: int) -> bytes:
    return segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + bytes(3))


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + bytes(4)


def box(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data) + 8) + kind + data


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 20, 10, 8, 0, 0, 0, 0))
GIF = b"GIF89a" + struct.pack("<HHBBB", 20, 10, 0, 0, 0)
GIF_PICTURE = b"," + struct.pack("<HHHHB", 0, 0, 20, 10, 0) + b"\x08\x02\x4c\x01\x00"
SCAN = segment(0xDA, bytes(4))
FTYP = box(b"ftyp", b"avif\0\0\0\0avif")


def avif(*sizes: tuple[int, int], before: bytes = b"") -> bytes:
    spelt = b"".join(box(b"ispe", bytes(4) + struct.pack(">II", *size)) for size in sizes)
    return FTYP + box(b"meta", bytes(4) + before + box(b"iprp", box(b"ipco", spelt)))


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + struct.pack("<I", following)


CRAFTED = {
    "gif that stands out of its screen": (GIF + b"," + struct.pack("<HHHHB", 90, 5, 20, 10, 0) + b"\x08\0;", (110, 15)),
    "avif of tiles": (avif((8, 8), (64, 32), (8, 8)), (64, 32)),
    "jpeg with fill bytes": (b"\xff\xd8\xff\xff\xff" + frame(20, 10)[1:] + SCAN, (20, 10)),
    "tiff of long numbers": (tiff((256, 4, 1, 70_000), (257, 3, 1, 10)), (70_000, 10)),
}


@pytest.mark.parametrize(("content", "size"), CRAFTED.values(), ids=CRAFTED.keys())
def test_size_is_the_one_that_a_decoder_would_make(content: bytes, size: tuple[int, int]) -> None:
    assert measure_picture(content) == PictureSize(*size)


UNTOLD = {
    "nothing": b"",
    "a text": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
    "png that begins with another chunk": b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", bytes(13)) + chunk(b"IDAT"),
    "png without data": PNG,
    "png of no size": PNG.replace(struct.pack(">II", 20, 10), bytes(8)) + chunk(b"IDAT"),
    "jpeg without a size": b"\xff\xd8" + SCAN,
    "jpeg of two sizes": b"\xff\xd8" + frame(2, 1) + frame(200, 100) + SCAN,
    "jpeg that tells its height later": b"\xff\xd8" + frame(20, 0) + SCAN,
    "jpeg that tells its size behind a mebibyte": b"\xff\xd8"
    + segment(0xE1, bytes(65_000)) * 17
    + frame(20, 10)
    + SCAN,
    "gif without a picture": GIF + b";",
    "gif of something else": GIF + b"x",
    "webp of something else": b"RIFF\0\0\0\0WEBPVP9 " + bytes(40),
    "bmp of an odd header": b"BM" + bytes(12) + struct.pack("<I", 20) + bytes(40),
    "tiff of two widths": tiff((256, 3, 1, 2), (256, 3, 1, 200), (257, 3, 1, 10)),
    "tiff whose width is a text": tiff((256, 2, 1, 20), (257, 3, 1, 10)),
    "tiff without a height": tiff((256, 3, 1, 20)),
    "tiff that points beyond its end": b"II*\0" + struct.pack("<I", 4_000_000_000),
    "avif without a size": avif(),
    "mp4": box(b"ftyp", b"isom\0\0\0\0isom"),
    "avif whose boxes are shorter than their heads": FTYP + struct.pack(">I4s", 4, b"meta"),
}


@pytest.mark.parametrize("content", UNTOLD.values(), ids=UNTOLD.keys())
def test_misplaced_size_is_not_searched_for(content: bytes) -> None:
    with pytest.raises(UnknownSize):
        measure_picture(content)


@pytest.mark.parametrize(
    "content",
    [
        PNG + chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(b"IDAT"),
        GIF + GIF_PICTURE * 2 + b";",
        tiff((256, 3, 1, 20), (257, 3, 1, 10), following=8),
        avif((20, 10)).replace(b"avif", b"avis", 1),
    ],
    ids=["png", "gif", "tiff whose pages go round", "avif"],
)
def test_crafted_files_of_several_pictures_are_seen_as_such(content: bytes) -> None:
    assert measure_picture(content).has_several_frames


COSTLY = {
    "png of chunks before its data": PNG + chunk(b"teSt") * MANY + chunk(b"IDAT"),
    "png of chunks behind its data": PNG + chunk(b"IDAT") + chunk(b"teSt") * MANY,
    "jpeg of segments": b"\xff\xd8" + segment(0xE1) * (3 * MANY) + frame(20, 10) + SCAN,
    "jpeg of restarts": b"\xff\xd8" + b"\xff\xd0" * (6 * MANY) + frame(20, 10) + SCAN,
    "jpeg of fill bytes": b"\xff\xd8" + b"\xff" * (12 * MANY) + frame(20, 10) + SCAN,
    "gif of blocks of one byte": GIF + GIF_PICTURE[:-3] + b"\x01x" * (6 * MANY) + b"\0;",
    "gif of extensions": GIF + b"!\xf9\0" * (4 * MANY) + GIF_PICTURE + b";",
    "gif of nothing": GIF + b"\0" * (12 * MANY),
    "tiff of tags": b"II*\0" + struct.pack("<IH", 8, 65_535) + bytes(12 * 65_535 + 4),
    "avif of boxes": FTYP + box(b"free") * MANY,
    "avif of sizes": avif(*[(2, 1)] * 40_000),
    "avif of boxes in its metadata": avif((20, 10), before=box(b"free") * 100_000),
}


@pytest.mark.parametrize("content", COSTLY.values(), ids=COSTLY.keys())
def test_millions_of_tiny_pieces_cost_no_time(content: bytes) -> None:
    began = time.process_time()
    with suppress(UnknownSize):
        measure_picture(content)
    assert time.process_time() - began < BOUND


@given(st.sampled_from(KINDS), st.data())
def test_damaged_file_is_measured_or_untold_and_nothing_else(kind: str, data: st.DataObject) -> None:
    content = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        picture = measure_picture(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except UnknownSize:
        return
    assert picture.width > 0
    assert picture.height > 0


WHOLE = {kind: saved(kind, 20, 10) for kind in KINDS}
