"""Units that an order pays for: input units, and at most so many output units.

    units_in    text, embeddings    one for every four bytes, begun or whole, of the input's canonical JSON, at least 1
                image, video        Σ width × height × max(1, seconds) over the reference assets, as declared
    units_out   text                the first of the three caps that is not zero, else 4096
                embeddings          0
                image               frame pixels × num_images
                video               frame pixels × seconds

The client declares them in its order; the provider computes them again from what it opened.
"""

from typing import Final

import attrs

from common.canonical_json import canonical
from common.pricing.assets import read_assets
from common.pricing.duration import seconds_of
from common.pricing.frame import frame_pixels
from common.pricing.model_input import OUTPUT_CAPS, Input, Modality, read_count
from common.refusal import Refused

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
