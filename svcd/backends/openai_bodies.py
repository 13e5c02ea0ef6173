"""From a job's input to the body of a request, with the output held to what the order pays for.

The client's own limits stay in force where they are lower; every way to more output than `units_out` is closed here,
because a provider is paid for `units_out` at most.
"""

from collections.abc import Mapping
from typing import Final

from svcd.backends.settings import OpenAISettings
from svcd.failures import JobFailed
from svcd.work import Work

# They change how an answer travels or what is kept of it, not what it is: this side decides them.
_TRANSPORT: Final = frozenset({"stream", "stream_options", "background", "store", "service_tier"})
_CAPS: Final = ("max_output_tokens", "max_tokens", "max_completion_tokens")
_REFERENCES: Final = (
    "image",
    "end_image",
    "video",
    "reference_images",
    "reference_videos",
    "reference_audios",
)
_MODALITY: Final = {"responses": "text", "chat": "text", "embeddings": "embeddings", "images": "image"}


def request_body(settings: OpenAISettings, work: Work) -> dict[str, object]:
    """`JobFailed` where no request of this kind can be made of the input."""
    _check(settings, work)
    body = {key: value for key, value in work.input.items() if key not in _TRANSPORT}
    match settings.api:
        case "responses":
            _cap(body, work, "max_output_tokens", 1)
        case "chat":
            _as_messages(body)
            _cap(body, work, settings.cap_name, _whole(body, "n"))
            if settings.stream:
                body["stream_options"] = {"include_usage": True}
        case "images":
            _as_image_request(body)
    if settings.stream:
        body["stream"] = True
    body |= settings.extra
    body["model"] = settings.models.get(work.model, work.model)
    for key in settings.drop:
        body.pop(key, None)
    return body


def _check(settings: OpenAISettings, work: Work) -> None:
    if work.modality != _MODALITY[settings.api]:
        raise _unfit(work, f"a job for {work.modality} has no place at the {settings.api} route")
    for key in settings.refuse:
        if work.input.get(key) is not None:
            raise _unfit(work, f"the input names {key}, which this provider refuses")
    if settings.api == "images" and any(work.input.get(key) for key in _REFERENCES):
        raise _unfit(work, "the images route takes no reference assets")


def _unfit(work: Work, detail: str) -> JobFailed:
    return JobFailed("media_input_refused" if work.modality in ("image", "video") else "backend_error", detail)


def _cap(body: dict[str, object], work: Work, name: str, answers: int) -> None:
    """The lowest of the client's limits and the order's, under the name that the route knows."""
    given = [_whole(body, key) for key in _CAPS if body.get(key) is not None]
    for key in _CAPS:
        body.pop(key, None)
    cap = min([work.units_out // answers, *given])
    if cap < 1:
        raise JobFailed("backend_error", f"{answers} answers do not fit into {work.units_out} units")
    body[name] = cap


def _whole(body: Mapping[str, object], key: str) -> int:
    """A number of at least one; absent is one."""
    number = body.get(key)
    if number is None:
        return 1
    if type(number) is not int or number < 1:
        raise JobFailed("backend_error", f"{key} is not a whole number above zero")
    return number


def _as_messages(body: dict[str, object]) -> None:
    """A plain text, or a list of messages under the other route's name, becomes a conversation."""
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
        raise JobFailed("backend_error", "the input holds neither messages nor a text")
    body["messages"] = messages


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _as_image_request(body: dict[str, object]) -> None:
    """The market's names of what the images route calls `prompt`, `n` and `size`."""
    if "prompt" not in body and isinstance(body.get("input"), str):
        body["prompt"] = body.pop("input")
    if (number := body.pop("num_images", None)) is not None:
        body["n"] = number
    width, height = body.pop("width", None), body.pop("height", None)
    if "size" not in body and (width is not None or height is not None):
        body["size"] = f"{width or 1024}x{height or 1024}"
    body.setdefault("response_format", "b64_json")
