"""Parameters of a model's input: its whole numbers, and the modality that its parameters imply.

    text      names max_output_tokens, max_tokens or max_completion_tokens
    video     otherwise, names duration or duration_secs
    image     otherwise, names num_images, width or resolution, or carries a reference asset
    text      otherwise

A parameter that is null is not named. Embeddings are recognised by the endpoint, never by the input.
"""

from collections.abc import Mapping
from typing import Final, Literal

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

_LARGEST: Final = float(MAX_SAFE_INTEGER)


def read_count(value: object, param: str, *, least: int = 0) -> int:
    """A whole number of at least `least`. 8.0 is 8: canonical JSON writes the two alike, so both sides read one."""
    number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST else value
    if type(number) is not int or number < least or number > MAX_SAFE_INTEGER:
        raise Refused(f"{param} must be a whole number of at least {least}", param)
    return number


Modality = Literal["text", "embeddings", "image", "video"]
Input = Mapping[str, object]

EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"
IMAGES_ENDPOINT: Final = "/v1/images/generations"
TEXT_ENDPOINTS: Final = frozenset({"/v1/responses", "/v1/chat/completions"})

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
