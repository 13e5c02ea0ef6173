import pytest

from common.pricing.assets import Asset
from common.pricing.frame import closest_ratio, frame_pixels, frame_size, largest_frame
from common.refusal import Refused

TABLE = {
    "480p": {"21:9": (978, 420), "16:9": (854, 480), "4:3": (740, 554), "1:1": (640, 640)},
    "720p": {"21:9": (1466, 628), "16:9": (1280, 720), "4:3": (1108, 832), "1:1": (960, 960)},
    "1080p": {"21:9": (2200, 942), "16:9": (1920, 1080), "4:3": (1662, 1248), "1:1": (1440, 1440)},
    "4k": {"21:9": (4400, 1886), "16:9": (3840, 2160), "4:3": (3326, 2494), "1:1": (2880, 2880)},
}
UPRIGHT = {"3:4": "4:3", "9:16": "16:9"}
CELLS = [(tier, ratio, frame) for tier, row in TABLE.items() for ratio, frame in row.items()] + [
    (tier, upright, row[lying][::-1]) for tier, row in TABLE.items() for upright, lying in UPRIGHT.items()
]


def still(width: int, height: int) -> Asset:
    return Asset("image", "still", "image/png", b"", width, height)


@pytest.mark.parametrize(("tier", "ratio", "frame"), CELLS)
def test_every_tier_has_its_frame_at_every_ratio(tier: str, ratio: str, frame: tuple[int, int]) -> None:
    assert frame_size(tier, ratio) == frame
    assert frame_pixels({"resolution": tier, "aspect_ratio": ratio}, ()) == frame[0] * frame[1]


@pytest.mark.parametrize(("tier", "ratio", "frame"), CELLS)
def test_other_ratios_keep_the_area_within_half_a_percent(tier: str, ratio: str, frame: tuple[int, int]) -> None:
    width, height = TABLE[tier]["16:9"]
    assert abs(frame[0] * frame[1] / (width * height) - 1) < 0.005


@pytest.mark.parametrize(
    ("tier", "frame"), [("480p", (978, 420)), ("720p", (1108, 832)), ("1080p", (1662, 1248)), ("4k", (4400, 1886))]
)
def test_adaptive_is_priced_at_the_largest_frame_of_the_tier(tier: str, frame: tuple[int, int]) -> None:
    assert largest_frame(tier) == frame
    assert frame_pixels({"resolution": tier, "aspect_ratio": "adaptive"}, (still(10, 10),)) == frame[0] * frame[1]


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
