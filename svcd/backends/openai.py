"""Backend for servers with OpenAI's routes: responses, chat completions, embeddings, images."""

import json
from typing import Final

import attrs
import httpx

from svc.wire.answers import open_response
from svc.wire.server_sent_events import EventReader
from svcd.backends.attempts import AttemptPolicy, BackendActivity, TryAgain
from svcd.backends.backend import OnDelta
from svcd.backends.http_answers import check_length, read_body, read_error, read_json_object, stream_body
from svcd.backends.openai_request import build_request_body
from svcd.backends.openai_streams import FINAL_EVENTS, Assembler, ChatAssembler, ResponsesAssembler
from svcd.backends.openai_usage import read_work_output
from svcd.backends.servers import MODELS_ROUTE, read_served_models
from svcd.backends.settings import OpenAISettings
from svcd.base.end_reasons import WorkFailed
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
    """Backend of one server. The caller opens `client` with the settings' headers and timeouts, and closes it."""

    settings: OpenAISettings
    client: httpx.AsyncClient

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        body = json.dumps(build_request_body(self.settings, work)).encode()
        settings = self.settings
        attempts = AttemptPolicy(settings.attempts, settings.backoff_s, settings.max_backoff_s)
        return await attempts.run(work, lambda activity: self._attempt(work, body, activity, on_delta))

    async def is_up(self) -> bool:
        try:
            url = self.settings.root + MODELS_ROUTE
            async with open_response(self.client, "GET", url, timeout=_PROBE_TIMEOUT_S) as response:
                # A server without this route may still be up. A server that rejects the API key accepts no jobs.
                return response.is_success or response.status_code in (404, 405)
        except httpx.RequestError:
            return False

    async def explain_unknown_model(self, model: str) -> str | None:
        settings = self.settings
        if not settings.check_name or "model" in settings.drop:
            return None
        served = await read_served_models(self.client, settings.root, _PROBE_TIMEOUT_S)
        name = settings.models.get(model, model)
        if served is None or served.accepts(name):
            return None
        return f"{settings.root}{MODELS_ROUTE} does not list {name!r}; it lists {served}"

    async def _attempt(
        self, work: ModelWork, body: bytes, activity: BackendActivity, on_delta: OnDelta | None
    ) -> WorkOutput:
        settings = self.settings
        activity.has_reacted = not settings.streams  # without streaming, silence is normal
        try:
            async with open_response(
                self.client,
                "POST",
                settings.root + _ROUTES[settings.api],
                content=body,
                headers={"content-type": "application/json", "accept": "application/json, text/event-stream"},
            ) as response:
                activity.has_reacted = True
                if not response.is_success:
                    raise await read_error(response)
                # A server that cannot stream ignores `stream` and sends one body.
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    assembler = ResponsesAssembler() if settings.api == "responses" else ChatAssembler()
                    forwarder = None if on_delta is None else _DeltaForwarder(work.model, on_delta)
                    answer = await self._assemble_answer(response, assembler, forwarder)
                    return read_work_output(settings.api, work, answer, assembler.event_count)
                answer = read_json_object(await read_body(response, settings.max_answer_bytes))
        except httpx.RequestError as broken:
            raise TryAgain(f"the backend did not answer: {type(broken).__name__}") from None
        return read_work_output(settings.api, work, answer, 0)

    async def _assemble_answer(
        self, response: httpx.Response, assembler: Assembler, forwarder: "_DeltaForwarder | None"
    ) -> dict[str, object]:
        try:
            return await self._read_stream(response, assembler, forwarder)
        except (TryAgain, httpx.RequestError) as broken:
            if forwarder is None or not forwarder.has_forwarded:
                raise

            # Do not retry: the client has already seen a part of this answer, and a retry would return another answer.
            raise WorkFailed("backend_exhausted", f"the stream broke off: {type(broken).__name__}", True) from None

    async def _read_stream(
        self, response: httpx.Response, assembler: Assembler, forwarder: "_DeltaForwarder | None"
    ) -> dict[str, object]:
        reader, length = EventReader(), 0

        def add_piece(piece: bytes) -> bool:
            nonlocal length
            length += len(piece)
            check_length(length, self.settings.max_answer_bytes)
            ended = False
            for event in reader.feed(piece):
                if event == b"[DONE]":
                    assembler.end()
                    ended = True
                else:
                    chunk = read_json_object(event)
                    assembler.add_event(chunk)
                    if forwarder is not None:
                        forwarder(chunk)
            return ended

        await stream_body(response, add_piece)
        answer = assembler.answer()
        if answer is None:
            raise TryAgain("the stream ended before the answer was complete")
        return answer


@attrs.define(slots=True)
class _DeltaForwarder:
    """Forwarder of the server's chunks. Each forwarded chunk has the market's name of the model.

    The last event of `/v1/responses` is not forwarded, because it repeats the whole answer.
    """

    model: str
    on_delta: OnDelta
    has_forwarded: bool = False

    def __call__(self, chunk: dict[str, object]) -> None:
        if chunk.get("type") in FINAL_EVENTS:
            return
        self.has_forwarded = True
        named: dict[str, object] = {"model": self.model} if "model" in chunk else {}
        response = chunk.get("response")
        if isinstance(response, dict) and "model" in response:
            named |= {"response": response | {"model": self.model}}
        self.on_delta(chunk | named)
