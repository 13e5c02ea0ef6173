"""Make the vectors of units: `python -m tests.vectors.generate_units`.

The numbers are literals, not computed by the code under test.
"""

from typing import Any, Final

from tests.vectors.vector_file import FOLDER, Case, text_of

RATIOS: Final = ("21:9", "16:9", "4:3", "1:1", "3:4", "9:16")
FRAMES: Final[dict[str, tuple[int, ...]]] = {
    "480p": (978 * 420, 854 * 480, 740 * 554, 640 * 640, 554 * 740, 480 * 854),
    "720p": (1466 * 628, 1280 * 720, 1108 * 832, 960 * 960, 832 * 1108, 720 * 1280),
    "1080p": (2200 * 942, 1920 * 1080, 1662 * 1248, 1440 * 1440, 1248 * 1662, 1080 * 1920),
    "4k": (4400 * 1886, 3840 * 2160, 3326 * 2494, 2880 * 2880, 2494 * 3326, 2160 * 3840),
}
LARGEST: Final = {"480p": 978 * 420, "720p": 1108 * 832, "1080p": 1662 * 1248, "4k": 4400 * 1886}

_RESPONSES, _EMBEDDINGS = "/v1/responses", "/v1/embeddings"
_STILL: Final = {"b64": "AAAA", "media_type": "image/png", "width": 90, "height": 160}
_CLIP: Final = {"b64": "AAAA", "media_type": "video/mp4", "width": 20, "height": 10, "duration_secs": 3}
_AUDIO: Final = {"b64": "AAAA", "media_type": "audio/wav"}

# name, input, modality, units in, units out
_TAKEN: Final[tuple[tuple[str, dict[str, Any], str, int, int], ...]] = (
    ("an empty text", {}, "text", 1, 4096),
    ("a text of 14 bytes", {"input": "hi"}, "text", 4, 4096),
    ("a text of 16 bytes", {"input": "high"}, "text", 4, 4096),
    ("a text of two bytes a letter", {"input": "\u00e9\u00e9\u00e9"}, "text", 5, 4096),
    ("the first cap counts", {"max_output_tokens": 7, "max_tokens": 9}, "text", 10, 7),
    ("a cap of zero does not", {"max_output_tokens": 0, "max_tokens": 9}, "text", 10, 9),
    ("caps before durations", {"max_completion_tokens": 5, "duration": 4}, "text", 10, 5),
    ("height alone is no image", {"height": 512}, "text", 4, 4096),
    ("an image is a square of 1024", {"num_images": 2}, "image", 0, 2 * 1024 * 1024),
    ("a missing side is 1024", {"width": 512}, "image", 0, 512 * 1024),
    ("sides before tiers", {"width": 8, "height": 8, "resolution": "4k"}, "image", 0, 64),
    ("a still gives auto its ratio", {"resolution": "720p", "image": _STILL}, "image", 90 * 160, 720 * 1280),
    ("no still and auto is wide", {"resolution": "720p", "aspect_ratio": "auto"}, "image", 0, 1280 * 720),
    ("an audio counts nothing", {"reference_audios": [_AUDIO]}, "image", 0, 1024 * 1024),
    ("a clip counts its seconds", {"video": _CLIP, "width": 8, "height": 8}, "image", 600, 64),
    ("a video lasts five seconds", {"duration": 0, "width": 8, "height": 8}, "video", 0, 320),
    ("seconds are cut", {"duration": 7.9, "width": 8, "height": 8}, "video", 0, 448),
    ("seconds in digits", {"duration": "12", "width": 8, "height": 8}, "video", 0, 768),
    ("auto is fifteen seconds", {"duration": "auto", "width": 8, "height": 8}, "video", 0, 960),
    ("duration_secs before duration", {"duration_secs": 2, "duration": 9, "width": 8, "height": 8}, "video", 0, 128),
)
_REFUSED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("a tier that is none", {"resolution": "240p"}),
    ("a ratio that is none", {"num_images": 1, "aspect_ratio": "3:2"}),
    ("a side of zero", {"width": 0}),
    ("no images", {"num_images": 0}),
    ("a cap below zero", {"max_tokens": -1}),
    ("a duration in words", {"duration": "8s"}),
    ("more than an order holds", {"resolution": "4k", "duration": 3600}),
    ("an asset without its width", {"image": {"b64": "AAAA", "media_type": "image/png", "height": 10}}),
    ("an asset without content", {"image": {"media_type": "image/png", "width": 10, "height": 10}}),
    ("ten stills in a list", {"reference_images": [_STILL] * 10}),
    ("four clips in a list", {"reference_videos": [_CLIP] * 4}),
    ("thirteen stills and clips", {"image": _STILL, "reference_images": [_STILL] * 9, "reference_videos": [_CLIP] * 3}),
    ("an asset of too many pixels", {"image": _STILL | {"width": 3841, "height": 2160}}),
    ("a clip that is too long", {"video": _CLIP | {"duration_secs": 61}}),
)


def cases() -> list[Case]:
    taken = [_case(name, _RESPONSES, *rest) for name, *rest in _TAKEN]
    taken.append(
        _case("embeddings pay for no output", _EMBEDDINGS, {"input": "hi", "max_tokens": 5}, "embeddings", 8, 0)
    )
    for tier, row in FRAMES.items():
        for ratio, pixels in zip(RATIOS, row, strict=True):
            taken.append(_case(f"{tier} at {ratio}", _RESPONSES, _framed(tier, ratio), "image", 0, pixels))
        adaptive = _framed(tier, "adaptive")
        taken.append(_case(f"{tier} at whatever comes", _RESPONSES, adaptive, "image", 0, LARGEST[tier]))
    return taken + [
        {"name": name, "endpoint": _RESPONSES, "input": given, "refused": "unpriceable"} for name, given in _REFUSED
    ]


def _framed(tier: str, ratio: str) -> dict[str, Any]:
    return {"resolution": tier, "aspect_ratio": ratio}


def _case(name: str, endpoint: str, given: Any, *told: Any) -> Case:
    expected = dict(zip(("modality", "units_in", "units_out"), told, strict=True))
    return {"name": name, "endpoint": endpoint, "input": given, **expected}


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {"units.json": text_of("Inputs, what kind of request each is, and the units that it is priced at.", cases())}


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
