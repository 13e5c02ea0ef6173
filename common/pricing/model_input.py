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

_MAX_SAFE_FLOAT: Final = float(MAX_SAFE_INTEGER)


def read_count(value: object, param: str, *, minimum: int = 0) -> int:
    """Read a whole number of at least `minimum`. Accepts 8.0, which canonical JSON writes as 8."""
    number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_SAFE_FLOAT else value
    if type(number) is not int or number < minimum or number > MAX_SAFE_INTEGER:
        raise Refused(f"{param} must be a whole number of at least {minimum}", param)
    return number


Modality = Literal["text", "embeddings", "image", "video"]
Input = Mapping[str, object]

EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"
IMAGES_ENDPOINT: Final = "/v1/images/generations"
TEXT_ENDPOINTS: Final = frozenset({"/v1/responses", "/v1/chat/completions"})


# The first of these parameters with a value other than zero sets the output units of a text request.
OUTPUT_CAP_PARAMS: Final = ("max_output_tokens", "max_tokens", "max_completion_tokens")
DURATION_PARAMS: Final = ("duration_secs", "duration")
_IMAGE_PARAMS: Final = ("num_images", "width", "resolution")
SINGLE_ASSET_PARAMS: Final = ("image", "end_image", "video")
ASSET_LIST_PARAMS: Final = ("reference_images", "reference_videos", "reference_audios")
_MODALITY_PARAMS: Final = frozenset(
    (*OUTPUT_CAP_PARAMS, *DURATION_PARAMS, *_IMAGE_PARAMS, *SINGLE_ASSET_PARAMS, *ASSET_LIST_PARAMS)
)


def modality_of(endpoint: str | None, model_input: Input) -> Modality:
    """Return the modality of an input. `endpoint` is needed only to recognise embeddings."""
    if endpoint == EMBEDDINGS_ENDPOINT:
        return "embeddings"
    if _MODALITY_PARAMS.isdisjoint(model_input):  # fast path for most texts
        return "text"
    if _has_any(model_input, OUTPUT_CAP_PARAMS):
        return "text"
    if _has_any(model_input, DURATION_PARAMS):
        return "video"
    if _has_any(model_input, _IMAGE_PARAMS) or carries_assets(model_input):
        return "image"
    return "text"


def carries_assets(model_input: Input) -> bool:
    """Return True if the input has a reference asset, valid or not."""
    return _has_any(model_input, SINGLE_ASSET_PARAMS) or any(model_input.get(name) for name in ASSET_LIST_PARAMS)


def _has_any(model_input: Input, names: tuple[str, ...]) -> bool:
    return any(model_input.get(name) is not None for name in names)
