import base64
import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image

from svcd.base.end_reasons import WorkFailed
from svcd.payload.media import check_media

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
