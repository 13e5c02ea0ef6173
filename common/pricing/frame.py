"""Frame size at which an image or video request is priced.

    explicit width × height, with 1024 for a missing side
    otherwise a resolution tier at an aspect ratio
    otherwise 1024 × 1024

A tier is named after its 16:9 frame. At another ratio the frame has about the same area, and both sides are rounded to
the nearest even number, as encoders need:

    width = 2·round(√(area · a / b) / 2)      height = 2·round(√(area · b / a) / 2)
"""

from fractions import Fraction
from math import isqrt
from typing import Final

from common.pricing.assets import Asset
from common.pricing.model_input import Input, read_count
from common.refusal import Refused

MISSING_SIDE: Final = 1024
WIDE: Final = "16:9"

TIERS: Final[dict[str, tuple[int, int]]] = {
    "480p": (854, 480),
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "4k": (3840, 2160),
}
RATIOS: Final[dict[str, tuple[int, int]]] = {
    "21:9": (21, 9),
    "16:9": (16, 9),
    "4:3": (4, 3),
    "1:1": (1, 1),
    "3:4": (3, 4),
    "9:16": (9, 16),
}
AUTO: Final = "auto"
ADAPTIVE: Final = "adaptive"


def frame_of(tier: str, ratio: str) -> tuple[int, int]:
    """Return width and height of a tier at one of the six ratios."""
    width, height = TIERS[tier]
    if ratio == WIDE:
        return width, height
    across, down = RATIOS[ratio]
    area = width * height
    return _even_root(area * across, down), _even_root(area * down, across)


def largest_frame(tier: str) -> tuple[int, int]:
    """Return the largest frame of a tier. `adaptive` is priced at it, because the model chooses the ratio."""
    return max((frame_of(tier, ratio) for ratio in RATIOS), key=_area)


def closest_ratio(width: int, height: int) -> str:
    """Return the ratio closest to a picture's, by the quotient of the two ratios. The first listed wins a tie."""
    return min(RATIOS, key=lambda name: _factor(width * RATIOS[name][1], height * RATIOS[name][0]))


def frame_pixels(model_input: Input, assets: tuple[Asset, ...]) -> int:
    """Return the pixels of one frame. Refuses an unknown ratio or tier, even if the price does not depend on it."""
    ratio = _ratio(model_input.get("aspect_ratio"))
    tier = model_input.get("resolution")
    width, height = model_input.get("width"), model_input.get("height")
    if width is not None or height is not None:
        return _side(width, "width") * _side(height, "height")
    if tier is None:
        return MISSING_SIDE * MISSING_SIDE
    if not isinstance(tier, str) or tier not in TIERS:
        raise Refused(f"resolution must be one of {', '.join(TIERS)}", "resolution")
    if ratio == ADAPTIVE:
        return _area(largest_frame(tier))
    if ratio == AUTO:
        pictures = [asset for asset in assets if asset.kind != "audio"]
        ratio = closest_ratio(pictures[0].width, pictures[0].height) if pictures else WIDE
    return _area(frame_of(tier, ratio))


def _ratio(value: object) -> str:
    if value is None:
        return AUTO
    if not isinstance(value, str) or (value not in RATIOS and value not in {AUTO, ADAPTIVE}):
        raise Refused(f"aspect_ratio must be one of {', '.join(RATIOS)}, {AUTO}, {ADAPTIVE}", "aspect_ratio")
    return value


def _side(value: object, param: str) -> int:
    return MISSING_SIDE if value is None else read_count(value, param, minimum=1)


def _area(frame: tuple[int, int]) -> int:
    return frame[0] * frame[1]


def _factor(one: int, other: int) -> Fraction:
    return Fraction(max(one, other), min(one, other))


def _even_root(numerator: int, denominator: int) -> int:
    """Return the even integer closest to √(numerator / denominator), computed exactly."""
    return 2 * ((isqrt(numerator // denominator) + 1) // 2)
