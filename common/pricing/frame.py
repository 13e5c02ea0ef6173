"""Compute the frame size at which an image or video request is priced.

    with width or height           width × height, with 1024 for a missing side
    otherwise with a resolution    the resolution tier at the aspect ratio
    otherwise                      1024 × 1024

A tier is named after its 16:9 frame. At another ratio the frame has about the same area, and both sides are rounded to
the nearest even number, as encoders need:

    width = 2·round(√(area · a / b) / 2)      height = 2·round(√(area · b / a) / 2)      for the ratio a:b
"""

from fractions import Fraction
from math import isqrt
from typing import Final

from common.pricing.assets import Asset
from common.pricing.model_input import Input, read_count
from common.refusal import Refused

DEFAULT_SIDE_PIXELS: Final = 1024
WIDE_RATIO: Final = "16:9"

RESOLUTION_TIERS: Final[dict[str, tuple[int, int]]] = {
    "480p": (854, 480),
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "4k": (3840, 2160),
}
ASPECT_RATIOS: Final[dict[str, tuple[int, int]]] = {
    "21:9": (21, 9),
    "16:9": (16, 9),
    "4:3": (4, 3),
    "1:1": (1, 1),
    "3:4": (3, 4),
    "9:16": (9, 16),
}
AUTO_RATIO: Final = "auto"
ADAPTIVE_RATIO: Final = "adaptive"


def frame_size(tier: str, ratio: str) -> tuple[int, int]:
    """Return width and height of a tier at one of the six ratios."""
    width, height = RESOLUTION_TIERS[tier]
    if ratio == WIDE_RATIO:
        return width, height
    ratio_width, ratio_height = ASPECT_RATIOS[ratio]
    area = width * height
    return _even_root(area * ratio_width, ratio_height), _even_root(area * ratio_height, ratio_width)


def largest_frame(tier: str) -> tuple[int, int]:
    """Return the largest frame of a tier. With the ratio `adaptive`, the model chooses the frame, so the largest
    frame is priced."""
    return max((frame_size(tier, ratio) for ratio in ASPECT_RATIOS), key=_area)


def closest_ratio(width: int, height: int) -> str:
    """Return the aspect ratio that is closest to width : height. In a tie, the first of `ASPECT_RATIOS` wins."""
    return min(
        ASPECT_RATIOS,
        key=lambda name: _larger_over_smaller(width * ASPECT_RATIOS[name][1], height * ASPECT_RATIOS[name][0]),
    )


def frame_pixels(model_input: Input, assets: tuple[Asset, ...]) -> int:
    """Return the pixels of one frame.

    Always refuse an unknown ratio. Refuse an unknown tier only if the request has neither width nor height.
    """
    ratio = _read_ratio(model_input.get("aspect_ratio"))
    tier = model_input.get("resolution")
    width, height = model_input.get("width"), model_input.get("height")
    if width is not None or height is not None:
        return _read_side(width, "width") * _read_side(height, "height")
    if tier is None:
        return DEFAULT_SIDE_PIXELS * DEFAULT_SIDE_PIXELS
    if not isinstance(tier, str) or tier not in RESOLUTION_TIERS:
        raise Refused(f"resolution must be one of {', '.join(RESOLUTION_TIERS)}", "resolution")
    if ratio == ADAPTIVE_RATIO:
        return _area(largest_frame(tier))
    if ratio == AUTO_RATIO:
        pictures = [asset for asset in assets if asset.kind != "audio"]
        ratio = closest_ratio(pictures[0].width, pictures[0].height) if pictures else WIDE_RATIO
    return _area(frame_size(tier, ratio))


def _read_ratio(value: object) -> str:
    if value is None:
        return AUTO_RATIO
    if not isinstance(value, str) or (value not in ASPECT_RATIOS and value not in {AUTO_RATIO, ADAPTIVE_RATIO}):
        raise Refused(
            f"aspect_ratio must be one of {', '.join(ASPECT_RATIOS)}, {AUTO_RATIO}, {ADAPTIVE_RATIO}", "aspect_ratio"
        )
    return value


def _read_side(value: object, param: str) -> int:
    return DEFAULT_SIDE_PIXELS if value is None else read_count(value, param, minimum=1)


def _area(frame: tuple[int, int]) -> int:
    return frame[0] * frame[1]


def _larger_over_smaller(a: int, b: int) -> Fraction:
    return Fraction(max(a, b), min(a, b))


def _even_root(numerator: int, denominator: int) -> int:
    """Return the even integer closest to √(numerator / denominator), computed exactly."""
    return 2 * ((isqrt(numerator // denominator) + 1) // 2)
