import pytest

from common.pricing.assets import Asset
from common.pricing.frame import closest_ratio, frame_pixels
from common.refusal import Refused


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
