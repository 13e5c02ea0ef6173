"""Build the request to a server with OpenAI's routes from a job's input.

The provider is paid for at most `units_out`, so the request limits the output to the lower of `units_out` and the
client's own limits.
"""

from collections.abc import Mapping
from typing import Final

from common.pricing.frame import ASPECT_RATIOS, DEFAULT_SIDE_PIXELS, RESOLUTION_TIERS, WIDE_RATIO, frame_size
from common.pricing.model_input import OUTPUT_CAP_PARAMS, carries_assets, read_count
from common.refusal import Refused
from svcd.backends.outside_references import find_outside_reference
from svcd.backends.settings import OpenAISettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork

# Members that only affect transport or storage. The provider decides these members, so remove the client's values.
_TRANSPORT_MEMBERS: Final = frozenset({"stream", "stream_options", "background", "store", "service_tier"})


def build_request_body(settings: OpenAISettings, work: ModelWork) -> dict[str, object]:
    """Return the body of the request. Raise `WorkFailed` if the input does not fit the route."""
    _check_input(settings, work)
    body = {key: value for key, value in work.input.items() if key not in _TRANSPORT_MEMBERS}
    match settings.api:
        case "responses":
            _set_output_limit(body, work, "max_output_tokens", 1)
        case "chat":
            _convert_to_messages(body)
            _set_output_limit(body, work, settings.cap_name, _read_whole_number(body, "n") or 1)
            if settings.streams:
                body["stream_options"] = {"include_usage": True}
        case "images":
            _convert_to_image_request(body)
    if settings.streams:
        body["stream"] = True
    body |= settings.extra
    body["model"] = settings.models.get(work.model, work.model)
    for key in settings.drop:
        body.pop(key, None)
    return body


def _check_input(settings: OpenAISettings, work: ModelWork) -> None:
    if work.modality != settings.modality:
        raise _input_error(work, f"the {settings.api} route does not serve {work.modality} jobs")
    for key in settings.refused_members:
        if work.input.get(key) is not None:
            raise _input_error(work, f"the input has {key}, which this provider does not accept")
    reference = None if settings.outside_references else find_outside_reference(work.input)
    if reference is not None:
        raise _input_error(work, f"the input refers to data outside the request ({reference})")
    if settings.api == "images" and carries_assets(work.input):
        raise _input_error(work, "the images route does not accept reference assets")


def _input_error(work: ModelWork, detail: str) -> WorkFailed:
    return WorkFailed("media_input_refused" if work.modality in ("image", "video") else "backend_error", detail)


def _set_output_limit(body: dict[str, object], work: ModelWork, name: str, answers: int) -> None:
    """Set the limit `name` to the lowest of the client's limits and the order's units divided by `answers`."""
    given = [_read_whole_number(body, key) for key in OUTPUT_CAP_PARAMS]
    for key in OUTPUT_CAP_PARAMS:
        body.pop(key, None)
    cap = min([work.units_out // answers, *filter(None, given)])
    if cap < 1:
        raise WorkFailed(
            "backend_error",
            f"the order pays for {work.units_out} output units, but {answers} answers need at least {answers}",
        )
    body[name] = cap


def _read_whole_number(body: Mapping[str, object], key: str) -> int:
    """Return the whole number at `key`, or 0 if the member is missing."""
    value = body.get(key)
    try:
        return 0 if value is None else read_count(value, key)
    except Refused as refusal:
        raise WorkFailed("backend_error", str(refusal)) from None


def _convert_to_messages(body: dict[str, object]) -> None:
    """Convert `input` and `instructions` of the responses route to `messages`."""
    if "messages" in body:
        return
    given = body.pop("input", None)
    instructions = body.pop("instructions", None)
    messages: list[object] = []
    if isinstance(instructions, str):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and all(_is_message(item) for item in given):
        messages += given
    else:
        raise WorkFailed("backend_error", "the input is neither a text nor a list of messages")
    body["messages"] = messages


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _convert_to_image_request(body: dict[str, object]) -> None:
    """Convert the market's members to the `prompt`, `n` and `size` of the images route."""
    if "prompt" not in body and isinstance(body.get("input"), str):
        body["prompt"] = body.pop("input")
    if (number := body.pop("num_images", None)) is not None:
        body["n"] = number
    size = _image_size(body)
    for key in ("width", "height", "resolution", "aspect_ratio"):
        body.pop(key, None)
    if size is not None:
        body.setdefault("size", size)
    body.setdefault("response_format", "b64_json")


def _image_size(body: Mapping[str, object]) -> str | None:
    """Return the frame size that the order pays for, or None. A resolution without a valid ratio means 16:9."""
    width, height, tier = body.get("width"), body.get("height"), body.get("resolution")
    if width is not None or height is not None:
        return (
            f"{_read_whole_number(body, 'width') or DEFAULT_SIDE_PIXELS}x"
            f"{_read_whole_number(body, 'height') or DEFAULT_SIDE_PIXELS}"
        )
    if not isinstance(tier, str) or tier not in RESOLUTION_TIERS:
        return None
    ratio = body.get("aspect_ratio")
    width, height = frame_size(tier, ratio if isinstance(ratio, str) and ratio in ASPECT_RATIOS else WIDE_RATIO)
    return f"{width}x{height}"
