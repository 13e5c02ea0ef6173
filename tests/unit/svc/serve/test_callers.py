"""Callers of the local API: authentication, valid requests, and the content of a stream."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from svc.serve.settings import BudgetSettings, HttpServerSettings, KeySettings, ServeSettings
from tests.unit.svc.fake_coordinator import until
from tests.unit.svc.serve.market import ServedMarket

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO: dict[str, Any] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("key", [None, "sk-other", ""])
async def test_request_without_a_valid_key_is_refused(market: ServedMarket, key: str | None, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.call("GET", "/v1/models", b"", key=key)
    assert (heard.status, heard.code) == (401, "invalid_api_key")


@pytest.mark.parametrize("host", ["evil.example:8403", "127.0.0.1:9", "127.0.0.1", ""])
async def test_foreign_host_name_is_refused(market: ServedMarket, host: str, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.get("/v1/models", headers={"host": host})
    assert (heard.status, heard.code) == (421, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost:8403", "LOCALHOST:8403", "[::1]:8403", "models.home:8403"])
async def test_own_and_listed_names_are_taken(market: ServedMarket, host: str, tmp_path: Path) -> None:
    settings = ServeSettings(server=HttpServerSettings(hosts=("models.home",)))
    async with market.served(tmp_path, settings) as caller:
        assert (await caller.get("/v1/models", headers={"host": host})).status == 200


async def test_page_of_a_browser_is_refused_even_with_a_key(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO, headers={"origin": "https://evil.example"})
        asked = await caller.call("OPTIONS", CHAT, b"", key=None, headers={"origin": "https://evil.example"})
    assert (heard.status, heard.code, asked.status) == (403, "origin_not_allowed", 403)
    assert not any(name.startswith("access-control") for name in {*heard.headers, *asked.headers})
    assert market.posts == []


async def test_page_that_is_listed_may_ask_first_and_read_the_answer(market: ServedMarket, tmp_path: Path) -> None:
    page = "https://notes.example"
    async with market.served(tmp_path, ServeSettings(server=HttpServerSettings(origins=(page,)))) as caller:
        asked = await caller.call("OPTIONS", CHAT, b"", key=None, headers={"origin": page})
        heard = await caller.get("/v1/models", headers={"origin": page})
    assert (asked.status, heard.status) == (204, 200)
    assert heard.headers["access-control-allow-origin"] == page


async def test_form_that_a_page_could_send_unasked_is_refused(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO, headers={"content-type": "text/plain"})
    assert (heard.status, market.posts) == (415, [])


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [("POST", CHAT, b"{", 400), ("POST", CHAT, b"[]", 400), ("GET", CHAT, b"", 405), ("GET", "/other", b"", 404)],
)
async def test_malformed_request_is_refused(  # noqa: PLR0917 - a row of the table
    market: ServedMarket, method: str, path: str, content: bytes, status: int, tmp_path: Path
) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.call(method, path, content)
    assert heard.status == status
    assert set(heard.json["error"]) == {"message", "type", "param", "code"}


async def test_requests_beyond_the_limit_get_retry_after(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: ("queued",) * 4 + ("completed",)}
    settings = ServeSettings(server=HttpServerSettings(max_requests=1))
    async with market.served(tmp_path, settings) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.post, CHAT, HELLO)
        await until(lambda: bool(market.jobs))
        heard = await caller.get("/v1/models")
    assert (heard.status, heard.code, heard.headers["x-should-retry"]) == (429, "rate_limit_exceeded", "true")


async def test_each_key_has_its_models_and_its_own_budget(market: ServedMarket, tmp_path: Path) -> None:
    keys = {}
    for name, more in (("rich", {}), ("poor", {"per_hour": 2_100, "models": ("demo/chat",)})):
        (tmp_path / name).write_text(f"sk-{name}-0123456789")
        keys[name] = KeySettings(file=str(tmp_path / name), **more)  # type: ignore[arg-type] # of two kinds
    asked = {**HELLO, "max_tokens": 5}
    async with market.served(tmp_path, ServeSettings(keys=keys, budget=BudgetSettings(per_day=10**9))) as caller:
        heard = [(await caller.post(CHAT, asked, key=key)).status for key in ("poor", "poor", "rich")]
        listed = (await caller.get("/v1/models", key="poor")).json["data"]
        other = await caller.post(RESPONSES, {"model": "demo/text", "input": "a"}, key="poor")
    assert heard == [200, 429, 200]
    assert [model["id"] for model in listed] == ["demo/chat"]
    assert (other.status, other.code) == (404, "model_not_found")


# --- streams --------------------------------------------------------------------------------------------------


async def test_stream_of_a_chat_begins_waits_and_ends_as_openais(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: ("queued",) * 12 + ("in_progress", "completed")}
    asked = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, asked)
    first, *_, last, counted = heard.events
    assert heard.headers["content-type"].startswith("text/event-stream")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in heard.events[:-1])
    assert (text, last["choices"][0]["finish_reason"]) == ("you said: hello", "stop")
    assert (counted["choices"], counted["usage"]["completion_tokens"]) == ([], 3)
    assert last["svc"]["job_id"] == heard.headers["x-svc-job-id"]
    assert heard.pieces[-1] == b"data: [DONE]\n\n"
    assert len({event["id"] for event in heard.events}) == 1
    waits = [later - sooner for sooner, later in zip(heard.at, heard.at[1:], strict=False)]
    assert heard.at[-1] - heard.at[0] > 15
    assert max(waits) <= 10  # the caller gets a keep-alive during the wait
    assert b": waiting for the provider to claim the job\n\n" in heard.pieces


async def test_response_stream_numbers_events_and_ends_with_the_whole(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(RESPONSES, {"model": "demo/chat", "input": "hello", "stream": True})
    kinds = [event["type"] for event in heard.events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in heard.events] == list(range(len(kinds)))
    whole = heard.events[-1]["response"]
    assert (whole["id"], whole["status"]) == (heard.events[0]["response"]["id"], "completed")
    assert heard.events[4]["delta"] == "you said: hello"
    assert (whole["usage"]["output_tokens"], whole["svc"]["job_id"]) == (3, heard.headers["x-svc-job-id"])


@pytest.mark.parametrize(("path", "ended"), [(CHAT, "error"), (RESPONSES, "response")])
async def test_stream_failure_uses_openais_format(market: ServedMarket, path: str, ended: str, tmp_path: Path) -> None:
    market.steps = {7: ("queued", "in_progress", "failed")}
    asked = {"model": "demo/chat", "input": "hello"} if path == RESPONSES else HELLO
    async with market.served(tmp_path) as caller:
        heard = await caller.post(path, {**asked, "stream": True})
    last = heard.events[-1][ended]
    assert heard.status == 200
    assert (last if ended == "error" else last["error"])["code"] == "job_provider_fail"


async def test_refusal_before_the_post_is_not_streamed(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = []
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, {**HELLO, "stream": True})
    assert (heard.status, heard.code) == (503, "no_live_provider")


async def test_broken_stream_cancels_an_unclaimed_job(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, gone = {7: ("queued",)}, anyio.Event()
    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.post(CHAT, {**HELLO, "stream": True}, gone=gone))
            await until(lambda: bool(market.jobs))
            gone.set()
        await anyio.sleep(10)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    (job,) = market.jobs.values()
    assert (job.steps, [entry.state for entry in spent]) == (["cancelled"], ["unpaid"])


async def test_broken_stream_is_returned_to_a_repeated_request(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, gone = {7: ("in_progress",) * 8 + ("completed",)}, anyio.Event()
    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.post(CHAT, {**HELLO, "stream": True}, gone=gone))
            await until(lambda: bool(market.jobs))
            gone.set()
        heard = await caller.post(CHAT, HELLO)  # without a stream: the same purchase
    assert heard.json["svc"]["job_id"] == next(iter(market.jobs))


async def test_call_of_a_tool_is_streamed_in_pieces_of_its_arguments(market: ServedMarket, tmp_path: Path) -> None:
    arguments = json.dumps({"city": "a city with a name that is far longer than a delta may well be, and more"})
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    market.answer = lambda *_: {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    async with market.served(tmp_path) as caller:
        chat = await caller.post(CHAT, {**HELLO, "stream": True})
        response = await caller.post(RESPONSES, {"model": "demo/chat", "input": "hello", "stream": True})
    calls = [call for event in chat.events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"], len(calls) > 2) == ("call_1", "weather", True)
    assert "".join(call["function"]["arguments"] for call in calls) == arguments
    assert chat.events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [event for event in response.events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas) == arguments
