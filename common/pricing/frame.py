"""Frame: the pixels that one frame of an image or video request is priced at.

    explicit width × height, a missing side counts 1024
    otherwise a resolution tier at an aspect ratio
    otherwise 1024 × 1024

A tier is the area of its 16:9 frame. At another ratio the frame keeps about that area, and both sides are rounded to
the nearest even number. Encoders need even sides, and a rule without choices gives every implementation one table:

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
    """Width and height of a tier at one of the six ratios."""
    width, height = TIERS[tier]
    if ratio == WIDE:
        return width, height
    across, down = RATIOS[ratio]
    area = width * height
    return _even_root(area * across, down), _even_root(area * down, across)


def largest_frame(tier: str) -> tuple[int, int]:
    """What `adaptive` is priced at: whatever the frame turns out to be, it is paid for."""
    return max((frame_of(tier, ratio) for ratio in RATIOS), key=_area)


def closest_ratio(width: int, height: int) -> str:
    """The ratio that a picture is nearest to, by the factor between the two; the first listed of equals."""
    return min(RATIOS, key=lambda name: _factor(width * RATIOS[name][1], height * RATIOS[name][0]))


def frame_pixels(model_input: Input, assets: tuple[Asset, ...]) -> int:
    """Pixels of one frame. Refuses an unknown tier or ratio, whether the price depends on it or not."""
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
    return MISSING_SIDE if value is None else read_count(value, param, least=1)


def _area(frame: tuple[int, int]) -> int:
    return frame[0] * frame[1]


def _factor(one: int, other: int) -> Fraction:
    return Fraction(max(one, other), min(one, other))


def _even_root(numerator: int, denominator: int) -> int:
    """The even number nearest to √(numerator / denominator), in integers: floats round as they like."""
    return 2 * ((isqrt(numerator // denominator) + 1) // 2)
