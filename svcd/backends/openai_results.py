"""What is charged for an answer, and what the client is told of it.

The server's own count is taken where it gives one; else the pieces of its stream; else the market's measure for
input, one unit per four bytes. Never more than the order pays for.
"""

from typing import Final

from common.pricing.units import text_units
from common.strict_json import canonical
from svcd.backends.http_answers import for_the_seal
from svcd.failures import JobFailed
from svcd.json_path import JsonPath
from svcd.work import Output, Work

_TEXTS: Final = {
    "responses": JsonPath.parse("output", "output"),
    "chat": JsonPath.parse("choices[*].message", "choices"),
}
_COUNTS: Final = {"responses": "output_tokens", "chat": "completion_tokens"}
_IMAGES: Final = JsonPath.parse("data[*].b64_json", "data")


def output_of(api: str, work: Work, answer: dict[str, object], counted: int) -> Output:
    if "model" in answer:
        answer = answer | {"model": work.model}  # what a provider calls it inside is nobody's concern
    output = for_the_seal(answer)
    usage = for_the_seal(answer.get("usage"))
    usage = usage if isinstance(usage, dict) else {}
    match api:
        case "embeddings":
            return Output(output, 0, usage)
        case "images":
            return Output(output, _image_units(work, answer), usage)
    units = usage.get(_COUNTS[api])
    if type(units) is not int or units < 0:
        units = counted or text_units(len(canonical(_TEXTS[api].find(output))))
        usage |= {_COUNTS[api]: units}
    return Output(output, min(units, work.units_out), usage)


def _image_units(work: Work, answer: dict[str, object]) -> int:
    """The order names its images by their pixels; those that did not come are not charged."""
    come = sum(1 for image in _IMAGES.find(answer) if isinstance(image, str) and image)
    if not come:
        raise JobFailed("backend_error", "the answer holds no image as base64 (set extra.response_format)", True)
    asked = work.input.get("num_images", work.input.get("n", 1))
    asked = asked if type(asked) is int and asked > 0 else 1
    return work.units_out * min(come, asked) // asked
