"""Backend for servers with OpenAI's routes: responses, chat completions, embeddings, images."""

import json
from typing import Final

import attrs
import httpx

from svc.wire.answers import opened
from svc.wire.server_sent_events import EventReader
from svcd.backends.attempts import Attempts, Signs, TryAgain
from svcd.backends.http_answers import check_length, read_answer, read_body, read_error, read_object
from svcd.backends.openai_request import request_body
from svcd.backends.openai_streams import Assembler, ChatAssembler, ResponsesAssembler
from svcd.backends.openai_usage import output_of
from svcd.backends.servers import MODELS_ROUTE, read_served
from svcd.backends.settings import OpenAISettings
from svcd.journal.work import ModelWork, WorkOutput

_ROUTES: Final = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "images": "/v1/images/generations",
}
_PROBE_TIMEOUT_S: Final = 10.0


@attrs.frozen(slots=True)
class OpenAIBackend:
    """Backend of one server. `client` has the settings' headers and timeouts; the caller closes it."""

    settings: OpenAISettings
    client: httpx.AsyncClient

    async def run(self, work: ModelWork) -> WorkOutput:
        body = json.dumps(request_body(self.settings, work)).encode()
        settings = self.settings
        attempts = Attempts(settings.attempts, settings.backoff_s, settings.max_backoff_s)
        return await attempts.run(work, lambda signs: self._attempt(work, body, signs))

    async def is_up(self) -> bool:
        try:
            url = self.settings.root + MODELS_ROUTE
            async with opened(self.client, "GET", url, timeout=_PROBE_TIMEOUT_S) as response:
                # A server without this route may still be up. One that rejects the API key accepts no jobs.
                return response.is_success or response.status_code in (404, 405)
        except httpx.RequestError:
            return False

    async def unknown_name(self, model: str) -> str | None:
        settings = self.settings
        if not settings.check_name or "model" in settings.drop:
            return None
        served = await read_served(self.client, settings.root, _PROBE_TIMEOUT_S)
        name = settings.models.get(model, model)
        if served is None or served.knows(name):
            return None
        return f"{settings.root}{MODELS_ROUTE} lists no {name!r}, but {served}"

    async def _attempt(self, work: ModelWork, body: bytes, signs: Signs) -> WorkOutput:
        settings = self.settings
        signs.of_life = not settings.streams  # without a stream, silence is normal
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
                # A server that cannot stream ignores `stream` and sends one body.
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    assembler = ResponsesAssembler() if settings.api == "responses" else ChatAssembler()
                    answer = await self._assemble(response, assembler)
                    return output_of(settings.api, work, answer, assembler.counted)
                answer = read_object(await read_body(response, settings.max_answer_bytes))
        except httpx.RequestError as broken:
            raise TryAgain(f"the backend did not answer: {type(broken).__name__}") from None
        return output_of(settings.api, work, answer, 0)

    async def _assemble(self, response: httpx.Response, assembler: Assembler) -> dict[str, object]:
        reader, length = EventReader(), 0

        def take(piece: bytes) -> bool:
            nonlocal length
            length += len(piece)
            check_length(length, self.settings.max_answer_bytes)
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
