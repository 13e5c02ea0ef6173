"""Units that an order pays for: input units, and at most so many output units.

    units_in    text, embeddings    one for every four bytes, begun or whole, of the input's canonical JSON, at least 1
                image, video        Σ width × height × max(1, seconds) over the reference assets, as declared
    units_out   text                the first of the three caps that is not zero, else 4096
                embeddings          0
                image               frame pixels × num_images
                video               frame pixels × seconds

The client declares them in its order; the provider computes them again from what it opened.
"""

import re
from fractions import Fraction
from math import isqrt
from typing import Final

import attrs

from common.pricing.assets import DURATIONS, OUTPUT_CAPS, Asset, Input, Modality, read_assets, read_count
from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER
from common.strict_json import canonical

# Duration: the seconds of video that a request is priced at.

AUTO_SECONDS: Final = 15
DEFAULT_SECONDS: Final = 5
_DIGITS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def seconds_of(model_input: Input) -> int:
    """From `duration_secs`, else `duration`: a number cut to whole seconds, digits, or `auto`.

    Absent or not positive is 5. What does not fit these is refused rather than priced at a guess.
    """
    for param in DURATIONS:
        value = model_input.get(param)
        if value is not None:
            seconds = _seconds(value, param)
            return seconds if seconds > 0 else DEFAULT_SECONDS
    return DEFAULT_SECONDS


def _seconds(value: object, param: str) -> int:
    if isinstance(value, str):
        if value == "auto":
            return AUTO_SECONDS
        if _DIGITS.fullmatch(value):
            return int(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SAFE_INTEGER:
        return int(value)
    raise Refused(f"{param} must be a number of seconds, digits or auto", param)


# Frame: the pixels that a frame of an image or video request is priced at.
#
#     explicit width × height, a missing one counting 1024
#     else a resolution tier at an aspect ratio
#     else 1024 × 1024
#
# A tier is an area: that of its 16:9 frame. At another ratio its frame keeps about that area, with both sides
# rounded to the nearest even number (encoders want even sides, and a rule without choices gives every
# implementation one table):
#
#     width = 2·round(√(area · a / b) / 2)      height = 2·round(√(area · b / a) / 2)

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


DEFAULT_OUTPUT_TOKENS: Final = 4096
BYTES_PER_UNIT: Final = 4
_MOST: Final = 2**32 - 1


@attrs.frozen(slots=True)
class Units:
    """Both fit the order's uint32."""

    units_in: int
    units_out: int


def units_of(modality: Modality, model_input: Input, *, units_out: int | None = None) -> Units:
    """`units_out` overrides what the input says; embeddings have none whatever is said."""
    if modality in {"image", "video"}:
        assets = read_assets(model_input)
        inward = sum(asset.units for asset in assets)
        frame = frame_pixels(model_input, assets)
        each = _images(model_input) if modality == "image" else seconds_of(model_input)
        outward = frame * each
    else:
        inward = text_units(len(canonical(dict(model_input))))
        outward = _output_tokens(model_input) if modality == "text" else 0
    if units_out is not None and modality != "embeddings":
        outward = read_count(units_out, "units_out")
    return Units(_within(inward, "units_in"), _within(outward, "units_out"))


def text_units(canonical_bytes: int) -> int:
    """Units of an input whose canonical JSON has so many bytes."""
    return max(1, -(-canonical_bytes // BYTES_PER_UNIT))


def _output_tokens(model_input: Input) -> int:
    caps = [read_count(model_input[name], name) for name in OUTPUT_CAPS if model_input.get(name) is not None]
    return next((cap for cap in caps if cap), DEFAULT_OUTPUT_TOKENS)


def _images(model_input: Input) -> int:
    value = model_input.get("num_images")
    return 1 if value is None else read_count(value, "num_images", least=1)


def _within(units: int, param: str) -> int:
    if units > _MOST:
        raise Refused(f"the request comes to {units} {param}, more than an order can hold ({_MOST})", param)
    return units
