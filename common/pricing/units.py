"""Compute the input units and maximum output units of an order from the model's input.

    units_in    text, embeddings    ⌈length of the input's canonical JSON / 4 bytes⌉, at least 1
                image, video        Σ width × height × max(1, seconds) over the declared reference assets
    units_out   text                the first parameter of OUTPUT_CAP_PARAMS that is not zero, otherwise 4096
                embeddings          0
                image               frame pixels × num_images
                video               frame pixels × seconds

The client declares both counts in its order. The provider computes them again from the opened payload.
"""

from typing import Final

import attrs

from common.canonical_json import canonical
from common.pricing.assets import read_assets
from common.pricing.duration import priced_seconds
from common.pricing.frame import frame_pixels
from common.pricing.model_input import OUTPUT_CAP_PARAMS, Input, Modality, read_count
from common.refusal import Refused

DEFAULT_OUTPUT_TOKENS: Final = 4096
BYTES_PER_UNIT: Final = 4
MAX_UNITS: Final = 2**32 - 1  # uint32 in the order


@attrs.frozen(slots=True)
class Units:
    """Input units and maximum output units of an order. Both fit a uint32."""

    units_in: int
    units_out: int


def units_of(modality: Modality, model_input: Input, *, units_out: int | None = None) -> Units:
    """Return the units of an input. A given `units_out` overrides the input's output units, except for embeddings."""
    if modality in {"image", "video"}:
        assets = read_assets(model_input)
        input_units = sum(asset.units for asset in assets)
        frame = frame_pixels(model_input, assets)
        frames = _image_count(model_input) if modality == "image" else priced_seconds(model_input)
        output_units = frame * frames
    else:
        input_units = text_units(len(canonical(dict(model_input))))
        output_units = _max_output_tokens(model_input) if modality == "text" else 0
    if units_out is not None and modality != "embeddings":
        output_units = read_count(units_out, "units_out")
    return Units(_check_units(input_units, "units_in"), _check_units(output_units, "units_out"))


def text_units(canonical_bytes: int) -> int:
    """Return the input units of a text from the length of its canonical JSON in bytes."""
    return max(1, -(-canonical_bytes // BYTES_PER_UNIT))


def _max_output_tokens(model_input: Input) -> int:
    caps = [read_count(model_input[name], name) for name in OUTPUT_CAP_PARAMS if model_input.get(name) is not None]
    return next((cap for cap in caps if cap), DEFAULT_OUTPUT_TOKENS)


def _image_count(model_input: Input) -> int:
    value = model_input.get("num_images")
    return 1 if value is None else read_count(value, "num_images", minimum=1)


def _check_units(units: int, param: str) -> int:
    if units > MAX_UNITS:
        raise Refused(f"the request needs {units} {param}; an order can have at most {MAX_UNITS}", param)
    return units
