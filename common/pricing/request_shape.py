"""What kind of request an input is, told from the parameters that it names.

    text      names max_output_tokens, max_tokens or max_completion_tokens
    video     else names duration or duration_secs
    image     else names num_images, width or resolution, or carries a reference asset
    text      else

A parameter that is null is not named. Embeddings are told by the endpoint, never by the input.
"""

from collections.abc import Mapping
from typing import Final, Literal

Modality = Literal["text", "embeddings", "image", "video"]
Input = Mapping[str, object]

EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"

# In the order in which the first that is not zero decides the output units of a text request.
OUTPUT_CAPS: Final = ("max_output_tokens", "max_tokens", "max_completion_tokens")
DURATIONS: Final = ("duration_secs", "duration")
_IMAGE_MARKS: Final = ("num_images", "width", "resolution")
SINGLE_ASSETS: Final = ("image", "end_image", "video")
ASSET_LISTS: Final = ("reference_images", "reference_videos", "reference_audios")
_MARKS: Final = frozenset((*OUTPUT_CAPS, *DURATIONS, *_IMAGE_MARKS, *SINGLE_ASSETS, *ASSET_LISTS))


def modality_of(endpoint: str | None, model_input: Input) -> Modality:
    """`endpoint`: where the request belongs, when it is known; only embeddings are told by it."""
    if endpoint == EMBEDDINGS_ENDPOINT:
        return "embeddings"
    if _MARKS.isdisjoint(model_input):  # as most texts are: one look instead of a dozen
        return "text"
    if _names(model_input, OUTPUT_CAPS):
        return "text"
    if _names(model_input, DURATIONS):
        return "video"
    if _names(model_input, _IMAGE_MARKS) or carries_assets(model_input):
        return "image"
    return "text"


def carries_assets(model_input: Input) -> bool:
    """Whether there is a reference asset, well formed or not."""
    return _names(model_input, SINGLE_ASSETS) or any(model_input.get(name) for name in ASSET_LISTS)


def _names(model_input: Input, names: tuple[str, ...]) -> bool:
    return any(model_input.get(name) is not None for name in names)
