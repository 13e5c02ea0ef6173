"""Any server with OpenAI's routes: responses, chat completions, embeddings, images."""

import json
from typing import Final

import attrs
import httpx

from common.pricing.units import text_units
from common.strict_json import canonical
from svcd.backends.attempts import Attempts, Signs, TryAgain
from svcd.backends.backend import EventReader
from svcd.backends.http_answers import check_length, for_the_seal, read_answer, read_body, read_error, read_object
from svcd.backends.openai_bodies import request_body
from svcd.backends.openai_streams import Assembler, ChatAssembler, ResponsesAssembler
from svcd.backends.settings import OpenAISettings
from svcd.errors import JobFailed
from svcd.job.held import Output, Work
from svcd.json_path import JsonPath
from svcd.payload.gateway import opened

# What is charged for an answer, and what the client is told of it.
#
# The server's own count is taken where it gives one; else the pieces of its stream; else the market's measure for
# input, one unit per four bytes. Never more than the order pays for.

_TEXTS: Final = {
    "responses": JsonPath.parse("output"),
    "chat": JsonPath.parse("choices[*].message"),
}
_COUNTS: Final = {"responses": "output_tokens", "chat": "completion_tokens"}
_IMAGES: Final = JsonPath.parse("data[*].b64_json")


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

    async def run(self, work: Work) -> Output:
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

    async def _attempt(self, work: Work, body: bytes, signs: Signs) -> Output:
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
