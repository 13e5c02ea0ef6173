"""Find the modality of an opened input."""

from collections.abc import Mapping, Set

from common.pricing.model_input import Modality, modality_of
from svcd.base.end_reasons import WorkFailed


def modality_for(serves: Set[Modality], model_input: Mapping[str, object], units_out: int) -> Modality:
    """Return the modality by the input's shape, among the configured `serves`.

    A bare prompt has the shape of text, and fits any model with a single modality. Raise `WorkFailed` with
    `modality_unknown` if the input is ambiguous, or `media_input_refused` if the model does not serve the modality.
    """
    if len(serves) == 1 and "embeddings" in serves:
        return "embeddings"
    shape = modality_of(None, model_input)
    if "embeddings" in serves and shape == "text" and units_out == 0:
        return "embeddings"  # only an embeddings order pays for no output
    if shape in serves:
        return shape
    if shape == "text" and len(serves) == 1:
        return next(iter(serves))
    if shape == "text":
        raise WorkFailed("modality_unknown", f"a bare prompt for a model that serves {_listed(serves)}")
    raise WorkFailed("media_input_refused", f"the input asks for {shape}, the model serves {_listed(serves)}")


def _listed(serves: Set[Modality]) -> str:
    return " and ".join(sorted(serves)) or "nothing"
