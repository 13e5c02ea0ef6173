"""Any server with OpenAI's routes: responses, chat completions, embeddings, images."""

import json
from collections.abc import Mapping
from typing import Final

import attrs
import httpx

from common.canonical_json import canonical
from common.pricing.frame import MISSING_SIDE, RATIOS, TIERS, WIDE, frame_of
from common.pricing.model_input import OUTPUT_CAPS, carries_assets, read_count
from common.pricing.units import text_units
from common.refusal import Refused
from svcd.backends.backend import Attempts, EventReader, Signs, TryAgain
from svcd.backends.http_answers import check_length, for_the_seal, read_answer, read_body, read_error, read_object
from svcd.backends.openai_streams import Assembler, ChatAssembler, ResponsesAssembler
from svcd.backends.servers import MODELS_ROUTE, read_served
from svcd.backends.settings import OpenAISettings
from svcd.base.errors import WorkFailed
from svcd.base.json_path import JsonPath
from svcd.journal.held_job import ModelWork, WorkOutput
from svcd.payload.gateway import opened

# From a job's input to the body of a request, with the output held to what the order pays for.
#
# The client's own limits stay in force where they are lower; every way to more output than `units_out` is closed here,
# because a provider is paid for `units_out` at most.

# Parts of a request that point outside of it: addresses that the model server would fetch, and ids of what it keeps.
#
# A stranger's request that names `http://10.0.0.1/` makes the server a hand inside the provider's network, and one that
# names a file's id reads what another client left there. Payloads carry their data themselves (`data:` addresses too).

_ADDRESSES: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_KEPT: Final = frozenset({"file_id", "file_ids", "vector_store_ids", "previous_response_id", "conversation"})
_KEPT_TYPES: Final = frozenset({"item_reference"})


def outside_reference(value: object) -> str | None:
    """The key (or the part's type) that points outside, the first one found; None where everything is inside."""
    if isinstance(value, list):
        return next((found for item in value if (found := outside_reference(item))), None)
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        if key in _ADDRESSES and isinstance(inner, str) and not inner.startswith("data:"):
            return str(key)
        # A tool's schema may well have properties of these names; their values are objects, never ids.
        if key in _KEPT and isinstance(inner, str | list) and inner:
            return str(key)
        if key == "type" and isinstance(inner, str) and inner in _KEPT_TYPES:
            return inner
        if found := outside_reference(inner):
            return found
    return None


# They change how an answer travels or what is kept of it, not what it is: this side decides them.
_TRANSPORT: Final = frozenset({"stream", "stream_options", "background", "store", "service_tier"})


def request_body(settings: OpenAISettings, work: ModelWork) -> dict[str, object]:
    """`WorkFailed` where no request of this kind can be made of the input."""
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
    """The lowest of the client's limits and the order's, under the name that the route knows."""
    given = [_whole(body, key) for key in OUTPUT_CAPS]
    for key in OUTPUT_CAPS:
        body.pop(key, None)
    cap = min([work.units_out // answers, *filter(None, given)])
    if cap < 1:
        raise WorkFailed("backend_error", f"{answers} answers do not fit into {work.units_out} units")
    body[name] = cap


def _whole(body: Mapping[str, object], key: str) -> int:
    """A whole number; absent is zero, which is how a limit says that it is none."""
    value = body.get(key)
    try:
        return 0 if value is None else read_count(value, key)
    except Refused as refusal:
        raise WorkFailed("backend_error", str(refusal)) from None


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
        raise WorkFailed("backend_error", "the input holds neither messages nor a text")
    body["messages"] = messages


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _as_image_request(body: dict[str, object]) -> None:
    """The market's names of what the images route calls `prompt`, `n` and `size`."""
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
    """The frame that the order is priced at; where the client leaves the ratio open, the wide one."""
    width, height, tier = body.get("width"), body.get("height"), body.get("resolution")
    if width is not None or height is not None:
        return f"{_whole(body, 'width') or MISSING_SIDE}x{_whole(body, 'height') or MISSING_SIDE}"
    if not isinstance(tier, str) or tier not in TIERS:
        return None
    ratio = body.get("aspect_ratio")
    width, height = frame_of(tier, ratio if isinstance(ratio, str) and ratio in RATIOS else WIDE)
    return f"{width}x{height}"


# Units that are charged for an answer, and the usage that the client is told.
#
# The server's own count is taken where it gives one; else the pieces of its stream; else the market's measure for
# input, one unit per four bytes. Never more than the order pays for.

_TEXTS: Final = {
    "responses": JsonPath.parse("output"),
    "chat": JsonPath.parse("choices[*].message"),
}
_COUNTS: Final = {"responses": "output_tokens", "chat": "completion_tokens"}
_IMAGES: Final = JsonPath.parse("data[*].b64_json")


def output_of(api: str, work: ModelWork, answer: dict[str, object], counted: int) -> WorkOutput:
    if "model" in answer:
        answer = answer | {"model": work.model}  # what a provider calls it inside is nobody's concern
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
    """The order names its images by their pixels; those that did not come are not charged."""
    come = sum(1 for image in _IMAGES.find(answer) if isinstance(image, str) and image)
    if not come:
        raise WorkFailed("backend_error", "the answer holds no image as base64 (set extra.response_format)", True)
    asked = work.input.get("num_images", work.input.get("n", 1))
    asked = asked if type(asked) is int and asked > 0 else 1
    return work.units_out * min(come, asked) // asked


_ROUTES: Final = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "images": "/v1/images/generations",
}
_LOOK_SECONDS: Final = 10.0


@attrs.frozen(slots=True)
class OpenAIBackend:
    """`client` carries the headers and time-outs of the settings; whoever opened it closes it."""

    settings: OpenAISettings
    client: httpx.AsyncClient

    async def run(self, work: ModelWork) -> WorkOutput:
        body = json.dumps(request_body(self.settings, work)).encode()
        settings = self.settings
        attempts = Attempts(settings.attempts, settings.backoff_seconds, settings.longest_backoff_seconds)
        return await attempts.run(work, lambda signs: self._attempt(work, body, signs))

    async def is_up(self) -> bool:
        try:
            url = self.settings.root + self.settings.health_path
            async with opened(self.client, "GET", url, timeout=_LOOK_SECONDS) as response:
                # A server without this route is up all the same; one that refuses the key takes no jobs either.
                return response.is_success or response.status_code in (404, 405)
        except httpx.RequestError:
            return False

    async def unknown_name(self, model: str) -> str | None:
        settings = self.settings
        if not settings.check_name or "model" in settings.drop:
            return None
        served = await read_served(self.client, settings.root, _LOOK_SECONDS)
        name = settings.models.get(model, model)
        if served is None or served.knows(name):
            return None
        return f"{settings.root}{MODELS_ROUTE} lists no {name!r}, but {served}"

    async def _attempt(self, work: ModelWork, body: bytes, signs: Signs) -> WorkOutput:
        settings = self.settings
        signs.of_life = not settings.streams  # without a stream, silence is how work sounds
        try:
            async with opened(
                self.client,
                "POST",
                settings.root + _ROUTES[settings.api],
                content=body,
                headers={"content-type": "application/json", "accept": "application/json, text/event-stream"},
            ) as response:
                signs.of_life = True
                if not response.is_success:
                    raise await read_error(response)
                # A server that cannot stream answers in one piece, whatever it was asked.
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    assembler = ResponsesAssembler() if settings.api == "responses" else ChatAssembler()
                    answer = await self._assemble(response, assembler)
                    return output_of(settings.api, work, answer, assembler.counted)
                answer = read_object(await read_body(response, settings.longest_answer_bytes))
        except httpx.RequestError as broken:
            raise TryAgain(f"the backend did not answer: {type(broken).__name__}") from None
        return output_of(settings.api, work, answer, 0)

    async def _assemble(self, response: httpx.Response, assembler: Assembler) -> dict[str, object]:
        reader, length = EventReader(), 0

        def take(piece: bytes) -> bool:
            nonlocal length
            length += len(piece)
            check_length(length, self.settings.longest_answer_bytes)
            ended = False
            for event in reader.feed(piece):
                if event == b"[DONE]":
                    assembler.end()
                    ended = True
                else:
                    assembler.take(read_object(event))
            return ended

        await read_answer(response, take)
        answer = assembler.answer()
        if answer is None:
            raise TryAgain("the stream ended before the answer did")
        return answer
