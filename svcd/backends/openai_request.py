"""Body of a request to a server with OpenAI's routes, made from a job's input.

The output is limited to what the order pays for, because the provider is paid for at most `units_out`. The client's own
limits stay in force where they are lower.
"""

from collections.abc import Mapping
from typing import Final

from common.pricing.frame import MISSING_SIDE, RATIOS, TIERS, WIDE, frame_of
from common.pricing.model_input import OUTPUT_CAPS, carries_assets, read_count
from common.refusal import Refused
from svcd.backends.outside_references import outside_reference
from svcd.backends.settings import OpenAISettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork

# Members that only affect transport or storage. The provider decides them, so the client's are removed.
_TRANSPORT: Final = frozenset({"stream", "stream_options", "background", "store", "service_tier"})


def request_body(settings: OpenAISettings, work: ModelWork) -> dict[str, object]:
    """Return the body of the request. Raise `WorkFailed` if the input does not fit the route."""
    _check(settings, work)
    body = {key: value for key, value in work.input.items() if key not in _TRANSPORT}
    match settings.api:
        case "responses":
            _cap(body, work, "max_output_tokens", 1)
        case "chat":
            _as_messages(body)
            _cap(body, work, settings.cap_name, _whole(body, "n") or 1)
            if settings.streams:
                body["stream_options"] = {"include_usage": True}
        case "images":
            _as_image_request(body)
    if settings.streams:
        body["stream"] = True
    body |= settings.extra
    body["model"] = settings.models.get(work.model, work.model)
    for key in settings.drop:
        body.pop(key, None)
    return body


def _check(settings: OpenAISettings, work: ModelWork) -> None:
    if work.modality != settings.modality:
        raise _unfit(work, f"a job for {work.modality} has no place at the {settings.api} route")
    for key in settings.refused:
        if work.input.get(key) is not None:
            raise _unfit(work, f"the input names {key}, which this provider refuses")
    reference = None if settings.outside_references else outside_reference(work.input)
    if reference is not None:
        raise _unfit(work, f"the input points outside of itself by {reference}")
    if settings.api == "images" and carries_assets(work.input):
        raise _unfit(work, "the images route takes no reference assets")


def _unfit(work: ModelWork, detail: str) -> WorkFailed:
    return WorkFailed("media_input_refused" if work.modality in ("image", "video") else "backend_error", detail)


def _cap(body: dict[str, object], work: ModelWork, name: str, answers: int) -> None:
    """Set the limit `name` to the lower of the client's limits and the order's."""
    given = [_whole(body, key) for key in OUTPUT_CAPS]
    for key in OUTPUT_CAPS:
        body.pop(key, None)
    cap = min([work.units_out // answers, *filter(None, given)])
    if cap < 1:
        raise WorkFailed("backend_error", f"{answers} answers do not fit into {work.units_out} units")
    body[name] = cap


def _whole(body: Mapping[str, object], key: str) -> int:
    """Return a whole number, or 0 if the member is absent."""
    value = body.get(key)
    try:
        return 0 if value is None else read_count(value, key)
    except Refused as refusal:
        raise WorkFailed("backend_error", str(refusal)) from None


def _as_messages(body: dict[str, object]) -> None:
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
        raise WorkFailed("backend_error", "the input holds neither messages nor a text")
    body["messages"] = messages


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _as_image_request(body: dict[str, object]) -> None:
    """Convert the market's members to the `prompt`, `n` and `size` of the images route."""
    if "prompt" not in body and isinstance(body.get("input"), str):
        body["prompt"] = body.pop("input")
    if (number := body.pop("num_images", None)) is not None:
        body["n"] = number
    size = _size(body)
    for key in ("width", "height", "resolution", "aspect_ratio"):
        body.pop(key, None)
    if size is not None:
        body.setdefault("size", size)
    body.setdefault("response_format", "b64_json")


def _size(body: Mapping[str, object]) -> str | None:
    """Return the frame size that the order is priced at. Without a ratio this is the wide one."""
    width, height, tier = body.get("width"), body.get("height"), body.get("resolution")
    if width is not None or height is not None:
        return f"{_whole(body, 'width') or MISSING_SIDE}x{_whole(body, 'height') or MISSING_SIDE}"
    if not isinstance(tier, str) or tier not in TIERS:
        return None
    ratio = body.get("aspect_ratio")
    width, height = frame_of(tier, ratio if isinstance(ratio, str) and ratio in RATIOS else WIDE)
    return f"{width}x{height}"
