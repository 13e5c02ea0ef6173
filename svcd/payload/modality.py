"""Modality of an opened input, for a model that is known to serve certain kinds."""

from collections.abc import Mapping, Set

from common.pricing.model_input import Modality, modality_of
from svcd.base.end_reasons import WorkFailed


def modality_for(serves: Set[Modality], model_input: Mapping[str, object], units_out: int) -> Modality:
    """`serves` is what the model's configuration says. The input's shape decides between several; where it says only
    "text", which is also the shape of a bare prompt, a model of one kind takes it as that kind.

    `WorkFailed`: `modality_unknown` where nothing decides, `media_input_refused` where the input asks for an image or a
    video of a model that makes none.
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
