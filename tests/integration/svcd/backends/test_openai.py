import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from svcd.backends.backend import Backend
from svcd.backends.build import open_backend
from svcd.base.end_reasons import WorkFailed
from tests.support.fakes.backend_settings import read_backend
from tests.support.fakes.model_server import Asked, ModelServer, Reply, running_model_server
from tests.support.fakes.provider_work import work_on

pytestmark = pytest.mark.trio

WHOLE = {"model": "local", "choices": [{"index": 0, "message": {"content": "hi"}}], "usage": {"completion_tokens": 2}}


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@asynccontextmanager
async def backend(*replies: Reply | None, **entries: object) -> AsyncIterator[tuple[Backend, ModelServer]]:
    """A backend that gets these replies in order. The last reply repeats."""
    waiting = list(replies)

    def answer(_: Asked) -> Reply | None:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    async with running_model_server(answer) as server:
        table = {"kind": "openai", "api": "chat", "base_url": server.url, "backoff_s": 0.001, **entries}
        async with open_backend(read_backend(table)) as opened:
            yield opened, server


async def test_a_stream_is_put_together_and_its_pieces_are_counted() -> None:
    reply = Reply.events(chunk("Hello "), chunk("wörld\u2028"), {"choices": [], "usage": None}, "[DONE]")
    async with backend(reply) as (openai, server):
        output = await openai.run(work_on())
    assert isinstance(output.output, dict)
    assert output.output["choices"][0]["message"] == {"role": "assistant", "content": "Hello wörld\u2028"}
    assert output.completion_tok == 2
    assert server.asked[0].json["stream"] is True


async def test_chunks_are_passed_on_under_the_market_name() -> None:
    first = {"type": "response.created", "response": {"model": "local", "output": []}}
    delta = {"type": "response.output_text.delta", "delta": "hi"}
    last = {"type": "response.completed", "response": {"model": "local", "output": [], "usage": {"output_tokens": 1}}}
    passed: list[dict[str, object]] = []
    async with backend(Reply.events(first, delta, last), api="responses") as (openai, _):
        work = work_on()
        await openai.run(work, passed.append)
    assert passed == [{"type": "response.created", "response": {"model": work.model, "output": []}}, delta]


async def test_stream_that_broke_off_after_a_chunk_is_not_repeated() -> None:
    passed: list[dict[str, object]] = []
    async with backend(Reply.of({}, 503), Reply.events(chunk("half"), cut=True), Reply.of(WHOLE)) as (openai, server):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on(), passed.append)
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_exhausted", True)
    assert (passed, len(server.asked)) == ([chunk("half")], 2)


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("responses", "/v1/responses"),
        ("chat", "/v1/chat/completions"),
        ("embeddings", "/v1/embeddings"),
        ("images", "/v1/images/generations"),
    ],
)
async def test_each_api_has_its_route_and_carries_model_and_headers(api: str, path: str) -> None:
    modality = {"embeddings": "embeddings", "images": "image"}.get(api, "text")
    reply = Reply.of({"data": [{"b64_json": "AAAA"}], "output": [], "usage": {"output_tokens": 3}, "choices": []})
    entries = {"models": {"market/model": "local"}, "headers": {"x-team": "blue"}}
    async with backend(reply, api=api, **entries) as (openai, server):
        await openai.run(work_on({"input": "x"}, modality=modality))  # type: ignore[arg-type] # the table above
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.json["model"], asked.headers["x-team"]) == ("POST", path, "local", "blue")


@pytest.mark.parametrize(
    "trouble",
    [
        Reply.of({}, 429, retry_after="0"),
        Reply.of({}, 503),
        Reply(200, (b'{"choices": [', b"]"), cut=True),
        Reply(200, (b"not json",)),
        Reply.events(chunk("half"), cut=True),
        Reply.events(chunk("half")),
        Reply.events({"error": {"code": 500}}),
        None,
    ],
    ids=["429", "503", "cut", "no json", "cut stream", "stream without an end", "error in the stream", "silence"],
)
async def test_a_passing_trouble_is_followed_by_another_attempt(trouble: Reply | None) -> None:
    async with backend(trouble, Reply.of(WHOLE), read_seconds=0.2) as (openai, server):
        output = await openai.run(work_on())
    assert output.completion_tok == 2
    assert len(server.asked) == 2


async def test_every_attempt_failed_is_exhaustion() -> None:
    async with backend(Reply.of({}, 500), attempts=2) as (openai, server):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on())
    assert (failed.value.reason, failed.value.backend_fault, len(server.asked)) == ("backend_exhausted", True, 2)


async def test_a_server_that_nobody_listens_at_is_exhausted_and_not_up() -> None:
    async with backend(Reply.of({})) as (_, server):
        gone = server.url
    table = {"kind": "openai", "api": "chat", "base_url": gone, "attempts": 2, "backoff_s": 0}
    async with open_backend(read_backend(table)) as openai:
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on())
        assert not await openai.is_up()
    assert failed.value.reason == "backend_exhausted"


async def test_wait_past_the_deadline_fails_the_job_in_time() -> None:
    async with backend(Reply.of({}, 429, retry_after="60")) as (openai, _):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on(deadline=trio.current_time() + 30))
    assert failed.value.reason == "deadline_wait"


async def test_request_is_dropped_at_the_deadline() -> None:
    async with backend(None) as (openai, server):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on(deadline=trio.current_time() + 0.1))
        with trio.fail_after(60):
            await server.left.wait()
    assert failed.value.reason == "deadline_wait"


@pytest.mark.parametrize(("status", "fault"), [(400, False), (422, False), (401, True), (404, True), (302, True)])
async def test_a_refusal_is_not_tried_again(status: int, fault: bool) -> None:
    async with backend(Reply.of({"error": {"code": "no"}}, status, location="/elsewhere")) as (openai, server):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on())
    assert (failed.value.reason, failed.value.backend_fault, len(server.asked)) == ("backend_error", fault, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_end_is_given_up_at_its_limit(stream: bool) -> None:
    long = "x" * 4000
    reply = Reply.events(chunk(long), "[DONE]") if stream else Reply.of(long)
    async with backend(reply, max_answer_bytes=1024) as (openai, server):
        with pytest.raises(WorkFailed) as failed:
            await openai.run(work_on())
    assert (failed.value.reason, failed.value.backend_fault, len(server.asked)) == ("backend_error", True, 1)


async def test_a_stream_that_says_its_end_and_stays_open_is_whole() -> None:
    held = Reply.events(chunk("hi"), "[DONE]", held=True)
    async with backend(held, read_seconds=30) as (openai, _):
        with trio.fail_after(60):
            assert (await openai.run(work_on())).completion_tok == 1


@pytest.mark.parametrize(("status", "up"), [(200, True), (404, True), (401, False), (503, False)])
async def test_a_look_tells_whether_jobs_would_be_taken(status: int, up: bool) -> None:
    async with backend(Reply.of({}, status)) as (openai, server):
        assert await openai.is_up() is up
    assert server.paths() == ["GET /v1/models"]


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with backend(Reply.of(WHOLE)) as (openai, _):
        output = await openai.run(work_on())
    assert json.loads(json.dumps(output.output))["model"] == "market/model"
