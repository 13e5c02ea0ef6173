"""Units that are charged for an answer, and the usage that is reported to the client.

The server's own count is used if it gives one, then the number of pieces of its stream. For input the last resort is
the market's measure, one unit per four bytes. The units never exceed what the order pays for.
"""

from typing import Final

from common.canonical_json import canonical
from common.pricing.units import text_units
from svcd.backends.http_answers import for_the_seal
from svcd.base.end_reasons import WorkFailed
from svcd.base.json_path import JsonPath
from svcd.journal.work import ModelWork, WorkOutput

_TEXTS: Final = {
    "responses": JsonPath.parse("output"),
    "chat": JsonPath.parse("choices[*].message"),
}
_COUNTS: Final = {"responses": "output_tokens", "chat": "completion_tokens"}
_IMAGES: Final = JsonPath.parse("data[*].b64_json")


def output_of(api: str, work: ModelWork, answer: dict[str, object], counted: int) -> WorkOutput:
    if "model" in answer:
        answer = answer | {"model": work.model}  # hides the provider's internal name
    output = for_the_seal(answer)
    usage = for_the_seal(answer.get("usage"))
    usage = usage if isinstance(usage, dict) else {}
    match api:
        case "embeddings":
            return WorkOutput(output, 0, usage)
        case "images":
            return WorkOutput(output, _image_units(work, answer), usage)
    units = usage.get(_COUNTS[api])
    if type(units) is not int or units < 0:
        units = counted or text_units(len(canonical(_TEXTS[api].find(output))))
        usage |= {_COUNTS[api]: units}
    return WorkOutput(output, min(units, work.units_out), usage)


def _image_units(work: ModelWork, answer: dict[str, object]) -> int:
    """Return the units of the images in the answer. Missing images are not charged."""
    come = sum(1 for image in _IMAGES.find(answer) if isinstance(image, str) and image)
    if not come:
        raise WorkFailed("backend_error", "the answer holds no image as base64 (set extra.response_format)", True)
    asked = work.input.get("num_images", work.input.get("n", 1))
    asked = asked if type(asked) is int and asked > 0 else 1
    return work.units_out * min(come, asked) // asked
