"""Determine the modality of a job from its opened input."""

from collections.abc import Mapping, Set

from common.pricing.model_input import Modality, modality_of
from svcd.base.end_reasons import WorkFailed


def modality_for(serves: Set[Modality], model_input: Mapping[str, object], units_out: int) -> Modality:
    """Return the modality, one of the model's `serves`, from the input's parameters.

    An input without parameters of another modality counts as text, or as the model's modality if the model has only
    one. Raise `WorkFailed` with `modality_unknown` if the input is ambiguous, or with `media_input_refused` if the
    model lacks the modality.
    """
    if len(serves) == 1 and "embeddings" in serves:
        return "embeddings"
    shape = modality_of(None, model_input)
    if "embeddings" in serves and shape == "text" and units_out == 0:
        return "embeddings"  # only orders of embeddings have no output units
    if shape in serves:
        return shape
    if shape == "text" and len(serves) == 1:
        return next(iter(serves))
    if shape == "text":
        raise WorkFailed(
            "modality_unknown",
            f"the input does not show its modality, and the model serves {_format_modalities(serves)}",
        )
    raise WorkFailed(
        "media_input_refused", f"the input asks for {shape}, but the model serves {_format_modalities(serves)}"
    )


def _format_modalities(serves: Set[Modality]) -> str:
    return " and ".join(sorted(serves)) or "nothing"
