"""Read the counts in a model's input, and derive the modality from its parameters.

The first matching line decides:

    text      has max_output_tokens, max_tokens or max_completion_tokens
    video     has duration or duration_secs
    image     has num_images, width, resolution or a reference asset
    text      otherwise

A null parameter counts as missing. Embeddings are recognised by the endpoint, not by the input.
"""

from collections.abc import Mapping
from typing import Final, Literal

from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER

_LARGEST: Final = float(MAX_SAFE_INTEGER)


def read_count(value: object, param: str, *, minimum: int = 0) -> int:
    """Read a whole number of at least `minimum`. Accepts 8.0, which canonical JSON writes as 8."""
    number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST else value
    if type(number) is not int or number < minimum or number > MAX_SAFE_INTEGER:
        raise Refused(f"{param} must be a whole number of at least {minimum}", param)
    return number


Modality = Literal["text", "embeddings", "image", "video"]
Input = Mapping[str, object]

EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"
IMAGES_ENDPOINT: Final = "/v1/images/generations"
TEXT_ENDPOINTS: Final = frozenset({"/v1/responses", "/v1/chat/completions"})

# The first of these that is not zero decides the output units of a text request.
OUTPUT_CAPS: Final = ("max_output_tokens", "max_tokens", "max_completion_tokens")
DURATIONS: Final = ("duration_secs", "duration")
_IMAGE_MARKS: Final = ("num_images", "width", "resolution")
SINGLE_ASSETS: Final = ("image", "end_image", "video")
ASSET_LISTS: Final = ("reference_images", "reference_videos", "reference_audios")
_MARKS: Final = frozenset((*OUTPUT_CAPS, *DURATIONS, *_IMAGE_MARKS, *SINGLE_ASSETS, *ASSET_LISTS))


def modality_of(endpoint: str | None, model_input: Input) -> Modality:
    """Return the modality of an input. `endpoint` is needed only to recognise embeddings."""
    if endpoint == EMBEDDINGS_ENDPOINT:
        return "embeddings"
    if _MARKS.isdisjoint(model_input):  # fast path for most texts
        return "text"
    if _names(model_input, OUTPUT_CAPS):
        return "text"
    if _names(model_input, DURATIONS):
        return "video"
    if _names(model_input, _IMAGE_MARKS) or carries_assets(model_input):
        return "image"
    return "text"


def carries_assets(model_input: Input) -> bool:
    """Return True if the input has a reference asset, even a malformed one."""
    return _names(model_input, SINGLE_ASSETS) or any(model_input.get(name) for name in ASSET_LISTS)


def _names(model_input: Input, names: tuple[str, ...]) -> bool:
    return any(model_input.get(name) is not None for name in names)
