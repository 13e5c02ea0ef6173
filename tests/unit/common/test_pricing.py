from typing import Any

import pytest

from common.pricing.assets import MAX_AUDIO_BYTES, Asset, read_assets
from common.pricing.duration import priced_seconds
from common.pricing.frame import closest_ratio, frame_pixels
from common.pricing.model_input import Modality, modality_of
from common.pricing.units import Units, units_of
from common.refusal import Refused
from common.scalars import base64_of
from tests.vectors.vector_file import Case, cases

STILL = {"b64": "AAAA", "media_type": "image/png", "width": 20, "height": 10}
CLIP = {**STILL, "media_type": "video/mp4", "duration_secs": 3}
AUDIO = {"b64": "AAAA", "media_type": "audio/wav"}


def changed(asset: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (asset | changes).items() if value is not None}


def test_every_key_is_read_with_its_place_and_its_units() -> None:
    assets = read_assets(
        {
            "image": STILL,
            "end_image": STILL,
            "video": CLIP,
            "reference_images": [STILL, STILL],
            "reference_videos": [CLIP],
            "reference_audios": [AUDIO],
        }
    )
    assert [(asset.param, asset.kind, asset.units) for asset in assets] == [
        ("image", "still", 200),
        ("end_image", "still", 200),
        ("video", "clip", 600),
        ("reference_images[0]", "still", 200),
        ("reference_images[1]", "still", 200),
        ("reference_videos[0]", "clip", 600),
        ("reference_audios[0]", "audio", 0),
    ]
    assert assets[0].content == bytes(3)


@pytest.mark.parametrize(
    "model_input",
    [
        {"reference_images": [STILL] * 9},
        {"reference_videos": [CLIP] * 3},
        {"reference_audios": [AUDIO] * 3},
        {"reference_images": [STILL] * 9, "reference_videos": [CLIP] * 3},
        {"image": changed(STILL, width=3840, height=2160)},
        {"video": changed(CLIP, duration_secs=60)},
        {"reference_audios": [changed(AUDIO, b64=base64_of(bytes(MAX_AUDIO_BYTES)))]},
    ],
)
def test_assets_at_a_limit_are_taken(model_input: dict[str, object]) -> None:
    assert read_assets(model_input)


@pytest.mark.parametrize(
    ("model_input", "param"),
    [
        ({"reference_images": [STILL] * 10}, "reference_images"),
        ({"reference_videos": [CLIP] * 4}, "reference_videos"),
        ({"reference_audios": [AUDIO] * 4}, "reference_audios"),
        ({"image": STILL, "reference_images": [STILL] * 9, "reference_videos": [CLIP] * 3}, "image"),
        ({"image": changed(STILL, width=3841, height=2160)}, "image"),
        ({"video": changed(CLIP, duration_secs=61)}, "video.duration_secs"),
        ({"video": changed(CLIP, duration_secs=1.5)}, "video.duration_secs"),
        ({"video": STILL}, "video.duration_secs"),
        (
            {"reference_audios": [AUDIO, changed(AUDIO, b64=base64_of(bytes(MAX_AUDIO_BYTES + 1)))]},
            "reference_audios[1].b64",
        ),
        ({"image": "https://example.org/cat.png"}, "image"),
        ({"image": changed(STILL, b64=None)}, "image.b64"),
        ({"image": changed(STILL, b64="AA==AA==")}, "image.b64"),
        ({"image": changed(STILL, media_type=None)}, "image.media_type"),
        ({"image": changed(STILL, width=None)}, "image.width"),
        ({"image": changed(STILL, height=0)}, "image.height"),
        ({"reference_images": STILL}, "reference_images"),
        ({"reference_images": [STILL, None]}, "reference_images[1]"),
    ],
)
def test_asset_over_a_limit_or_malformed_is_refused_by_its_place(model_input: dict[str, object], param: str) -> None:
    with pytest.raises(Refused) as refused:
        read_assets(model_input)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("model_input", "seconds"),
    [
        ({}, 5),
        ({"duration": None}, 5),
        ({"duration": 8}, 8),
        ({"duration": 7.9}, 7),
        ({"duration": 0.9}, 5),
        ({"duration": 0}, 5),
        ({"duration": -3}, 5),
        ({"duration": "12"}, 12),
        ({"duration": "0"}, 5),
        ({"duration": "auto"}, 15),
        ({"duration_secs": 6, "duration": 9}, 6),
        ({"duration_secs": None, "duration": 9}, 9),
        ({"duration_secs": 0, "duration": 9}, 5),
    ],
)
def test_seconds_follow_the_parameters(model_input: dict[str, object], seconds: int) -> None:
    assert priced_seconds(model_input) == seconds


@pytest.mark.parametrize("value", ["8s", "", "١٢", "1.5", "-3", True, [5], 1e300])
def test_other_durations_are_refused(value: object) -> None:
    with pytest.raises(Refused) as refused:
        priced_seconds({"duration": value})
    assert refused.value.param == "duration"


def still(width: int, height: int) -> Asset:
    return Asset("image", "still", "image/png", b"", width, height)


@pytest.mark.parametrize(
    ("size", "ratio"),
    [((100, 100), "1:1"), ((640, 480), "4:3"), ((500, 900), "9:16"), ((3000, 1000), "21:9"), ((1, 50), "9:16")],
)
def test_picture_has_its_closest_ratio(size: tuple[int, int], ratio: str) -> None:
    assert closest_ratio(*size) == ratio


@pytest.mark.parametrize(
    ("model_input", "assets", "pixels"),
    [
        ({}, (), 1024 * 1024),
        ({"aspect_ratio": "9:16"}, (), 1024 * 1024),
        ({"width": 512, "height": 256}, (), 512 * 256),
        ({"width": 512.0}, (), 512 * 1024),
        ({"height": 512, "resolution": "4k"}, (), 1024 * 512),
        ({"resolution": "720p"}, (), 1280 * 720),
        ({"resolution": "720p", "aspect_ratio": "auto"}, (), 1280 * 720),
        ({"resolution": "720p"}, (still(90, 160), still(100, 100)), 720 * 1280),
        ({"resolution": "720p", "aspect_ratio": "auto"}, (still(101, 100),), 960 * 960),
        ({"resolution": "720p"}, (Asset("a", "audio", "audio/wav", b""), still(4, 3)), 1108 * 832),
    ],
)
def test_frame_is_explicit_else_a_tier_else_a_square(
    model_input: dict[str, object], assets: tuple[Asset, ...], pixels: int
) -> None:
    assert frame_pixels(model_input, assets) == pixels


@pytest.mark.parametrize(
    ("model_input", "param"),
    [
        ({"aspect_ratio": "3:2", "width": 10, "height": 10}, "aspect_ratio"),
        ({"aspect_ratio": 1.5}, "aspect_ratio"),
        ({"resolution": "240p"}, "resolution"),
        ({"resolution": 720}, "resolution"),
        ({"width": 0}, "width"),
        ({"width": 1.5}, "width"),
        ({"width": 8, "height": -8}, "height"),
    ],
)
def test_frame_that_cannot_be_priced_is_refused_by_name(model_input: dict[str, object], param: str) -> None:
    with pytest.raises(Refused) as refused:
        frame_pixels(model_input, ())
    assert refused.value.param == param


ASSET = {"b64": "AAAA", "media_type": "image/png", "width": 1, "height": 1}


@pytest.mark.parametrize(
    ("model_input", "modality"),
    [
        ({}, "text"),
        ({"input": "hello"}, "text"),
        ({"prompt": "a cat", "height": 512}, "text"),
        ({"max_output_tokens": 1}, "text"),
        ({"max_tokens": 0}, "text"),
        ({"max_completion_tokens": 5, "duration": 4, "width": 512}, "text"),
        ({"max_tokens": None, "duration": 4}, "video"),
        ({"duration": "auto"}, "video"),
        ({"duration_secs": 3, "num_images": 2}, "video"),
        ({"num_images": 1}, "image"),
        ({"width": 512}, "image"),
        ({"resolution": "720p"}, "image"),
        ({"image": ASSET}, "image"),
        ({"end_image": ASSET}, "image"),
        ({"video": ASSET}, "image"),
        ({"reference_images": [ASSET]}, "image"),
        ({"reference_videos": [ASSET]}, "image"),
        ({"reference_audios": [ASSET]}, "image"),
        ({"reference_images": []}, "text"),
    ],
)
def test_parameters_tell_the_modality(model_input: dict[str, object], modality: str) -> None:
    assert modality_of(None, model_input) == modality
    assert modality_of("/v1/responses", model_input) == modality


VECTORS = cases("units.json")


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vectors_that_all_implementations_share_hold(case: Case) -> None:
    modality = modality_of(case["endpoint"], case["input"])
    if "refused" in case:
        with pytest.raises(Refused):
            units_of(modality, case["input"])
    else:
        assert modality == case["modality"]
        assert units_of(modality, case["input"]) == Units(case["units_in"], case["units_out"])


def test_units_out_may_be_overridden_except_for_embeddings() -> None:
    assert units_of("text", {"max_tokens": 5}, units_out=0) == Units(4, 0)
    assert units_of("image", {}, units_out=77) == Units(0, 77)
    assert units_of("embeddings", {"input": ""}, units_out=77).units_out == 0


@pytest.mark.parametrize(
    ("modality", "model_input", "units_out", "param"),
    [
        ("text", {"max_tokens": -1}, None, "max_tokens"),
        ("text", {"max_output_tokens": 5, "max_tokens": "many"}, None, "max_tokens"),
        ("text", {"max_tokens": 2**32}, None, "units_out"),
        ("text", {}, -1, "units_out"),
        ("image", {"num_images": 0}, None, "num_images"),
        ("video", {"resolution": "4k", "duration": 3600}, None, "units_out"),
    ],
)
def test_units_that_no_order_can_hold_are_refused(
    modality: Modality, model_input: dict[str, object], units_out: int | None, param: str
) -> None:
    with pytest.raises(Refused) as refused:
        units_of(modality, model_input, units_out=units_out)
    assert refused.value.param == param
