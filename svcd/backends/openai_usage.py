"""Determine the units to charge for an answer, and the usage reported to the client.

Use the server's count of output tokens. Without a count, use the number of events in the server's stream. Without a
stream, use one unit per four bytes of the answer. The units never exceed the order's `units_out`.
"""

from typing import Final

from common.canonical_json import canonical
from common.pricing.units import text_units
from svcd.backends.http_answers import to_sealable_json
from svcd.base.end_reasons import WorkFailed
from svcd.base.json_path import JsonPath
from svcd.journal.work import ModelWork, WorkOutput

_TEXT_PATHS: Final = {
    "responses": JsonPath.parse("output"),
    "chat": JsonPath.parse("choices[*].message"),
}
_COUNT_KEYS: Final = {"responses": "output_tokens", "chat": "completion_tokens"}
_IMAGE_PATH: Final = JsonPath.parse("data[*].b64_json")


def read_work_output(api: str, work: ModelWork, answer: dict[str, object], event_count: int) -> WorkOutput:
    if "model" in answer:
        answer = answer | {"model": work.model}  # hides the provider's internal name
    output = to_sealable_json(answer)
    usage = to_sealable_json(answer.get("usage"))
    usage = usage if isinstance(usage, dict) else {}
    match api:
        case "embeddings":
            return WorkOutput(output, 0, usage)
        case "images":
            return WorkOutput(output, _image_units(work, answer), usage)
    units = usage.get(_COUNT_KEYS[api])
    if type(units) is not int or units < 0:
        units = event_count or text_units(len(canonical(_TEXT_PATHS[api].select(output))))
        usage |= {_COUNT_KEYS[api]: units}
    return WorkOutput(output, min(units, work.units_out), usage)


def _image_units(work: ModelWork, answer: dict[str, object]) -> int:
    """Return the units of the images in the answer. Missing images are not charged."""
    received = sum(1 for image in _IMAGE_PATH.select(answer) if isinstance(image, str) and image)
    if not received:
        raise WorkFailed(
            "backend_error", "the answer has no base64 image (set response_format in the backend's extra)", True
        )
    ordered = work.input.get("num_images", work.input.get("n", 1))
    ordered = ordered if type(ordered) is int and ordered > 0 else 1
    return work.units_out * min(received, ordered) // ordered
