"""Whether the order pays for what its payload turned out to be. The coordinator cannot know: it opens none."""

from collections.abc import Mapping

from common.pricing.request_shape import Modality
from common.pricing.units import units_of
from common.refusal import Refused
from svcd.failures import JobFailed


def check_units(modality: Modality, model_input: Mapping[str, object], *, units_in: int, units_out: int) -> None:
    """`JobFailed`: `units_in_short` for a text that is longer than declared; `media_input_refused` for a media request
    whose references, frames or images come to more than the order pays for, or that is malformed."""
    if modality in ("image", "video"):
        _check_media(modality, model_input, units_in, units_out)
        return
    try:
        needed = units_of(modality, model_input, units_out=units_out).units_in  # the backend holds its output to less
    except Refused as refusal:
        raise JobFailed("units_in_short", str(refusal)) from None
    if needed > units_in:
        raise JobFailed("units_in_short", f"the input comes to {needed} units, the order pays for {units_in}")


def _check_media(modality: Modality, model_input: Mapping[str, object], units_in: int, units_out: int) -> None:
    try:
        needed = units_of(modality, model_input)
    except Refused as refusal:
        raise JobFailed("media_input_refused", str(refusal)) from None
    for name, has, pays in (("in", needed.units_in, units_in), ("out", needed.units_out, units_out)):
        if has > pays:
            raise JobFailed(
                "media_input_refused", f"the request comes to {has} units_{name}, the order pays for {pays}"
            )
