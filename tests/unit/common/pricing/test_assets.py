from typing import Any

import pytest

from common.pricing.assets import MAX_AUDIO_BYTES, read_assets
from common.refusal import Refused
from common.scalars import base64_of

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
