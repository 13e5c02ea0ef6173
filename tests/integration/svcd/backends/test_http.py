import base64
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

SUBMIT, POLL, CANCEL = "POST /jobs", "GET /jobs/a%2Fb", "DELETE /jobs/a%2Fb"
Script = dict[str, list[Reply | None]]


@asynccontextmanager
async def backend(script: Script, **entries: object) -> AsyncIterator[tuple[Backend, ModelServer]]:
    """A backend whose server has a list of replies per request. The last reply repeats."""

    def answer(asked: Asked) -> Reply | None:
        replies = script.get(f"{asked.method} {asked.path}", [Reply.of({}, 404)])
        return replies.pop(0) if len(replies) > 1 else replies[0]

    async with running_model_server(answer) as server:
        table = {
            "kind": "http",
            "submit_url": f"{server.url}/jobs",
            "poll_url": f"{server.url}/jobs/{{id}}",
            "cancel_url": f"{server.url}/jobs/{{id}}",
            "cancel_method": "DELETE",
            "poll_s": 0.01,
            "backoff_s": 0.001,
            "attempts": 2,
            **entries,
        }
        table = {key: value for key, value in table.items() if value is not None}
        async with open_backend(read_backend(table)) as opened:
            yield opened, server


def job(status: str, **members: object) -> Reply:
    return Reply.of({"id": "a/b", "status": status, **members})


async def test_a_job_is_submitted_polled_until_done_and_charged_whole() -> None:
    script: Script = {SUBMIT: [job("queued")], POLL: [job("running"), Reply.of({}, 503), job("done", output={"a": 1})]}
    entries = {"input_key": "input", "model_key": "version", "models": {"market/model": "v1"}, "extra": {"fps": 24}}
    async with backend(script, **entries) as (http, server):
        output = await http.run(work_on({"prompt": "x"}, modality="video", units_out=500))
    assert (output.output, output.completion_tok) == ({"a": 1}, 500)
    assert server.paths() == [SUBMIT, POLL, POLL, POLL]
    assert server.asked[0].json == {"input": {"prompt": "x"}, "fps": 24, "version": "v1"}


async def test_a_job_that_is_done_when_submitted_is_not_polled() -> None:
    async with backend({SUBMIT: [job("done", output=[1])]}) as (http, server):
        assert (await http.run(work_on(modality="image"))).output == [1]
    assert server.paths() == [SUBMIT]


async def test_the_address_to_poll_may_come_with_the_answer() -> None:
    script: Script = {SUBMIT: [job("queued", urls={"get": "/elsewhere"})], "GET /elsewhere": [job("done", output=1)]}
    async with backend(script, poll_url=None, poll_url_path="urls.get") as (http, server):
        await http.run(work_on(modality="image"))
    assert server.paths() == [SUBMIT, "GET /elsewhere"]


async def test_files_are_fetched_and_the_key_stays_with_its_server() -> None:
    picture = Reply(200, (b"\x89PNG",), {"content-type": "image/png; charset=binary"})
    async with running_model_server(lambda _: picture) as store:
        done = job("done", output=[{"url": f"{store.url}/1.png", "seed": 7}, {"url": "/2.png"}])
        script: Script = {SUBMIT: [done], "GET /2.png": [picture]}
        async with backend(script, download=True, headers={"authorization": "Bearer k"}) as (http, server):
            output = await http.run(work_on(modality="image"))
    carried = {"b64": base64.b64encode(b"\x89PNG").decode(), "media_type": "image/png"}
    assert output.output == [{"seed": 7, **carried}, carried]
    assert server.asked[1].headers["authorization"] == "Bearer k"
    assert "authorization" not in store.asked[0].headers


@pytest.mark.parametrize(
    ("address", "carried"),
    [
        ("data:image/png;base64,iVBORw==", {"b64": "iVBORw==", "media_type": "image/png"}),
        ("data:image/svg+xml;charset=utf-8;base64,PHN2Zy8%2B", {"b64": "PHN2Zy8+", "media_type": "image/svg+xml"}),
        ("data:text/plain,a%20b", {"b64": "YSBi", "media_type": "text/plain"}),
        (f"data:image/png;base64,{'A' * 2_000_000}", {"b64": "A" * 2_000_000, "media_type": "image/png"}),
        ("data:,", {"b64": "", "media_type": "application/octet-stream"}),
    ],
    ids=["base64", "with a charset", "percent-encoded", "large", "empty"],
)
async def test_data_url_is_carried_without_a_request(address: str, carried: dict[str, str]) -> None:
    async with backend({SUBMIT: [job("done", output=[{"url": address}])]}, download=True) as (http, server):
        assert (await http.run(work_on(modality="image"))).output == [carried]
    assert server.paths() == [SUBMIT]


async def test_failed_job_is_resubmitted_until_exhausted() -> None:
    script: Script = {SUBMIT: [job("queued")], POLL: [job("failed", error="out_of_memory")]}
    async with backend(script) as (http, server):
        with pytest.raises(WorkFailed) as failed:
            await http.run(work_on(modality="image"))
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_exhausted", True)
    assert "out_of_memory" in failed.value.detail
    assert server.paths() == [SUBMIT, POLL, SUBMIT, POLL]  # an ended job is not cancelled
    assert server.asked[0].headers["idempotency-key"] != server.asked[2].headers["idempotency-key"]


async def test_submit_with_lost_response_is_repeated_with_its_key() -> None:
    script: Script = {SUBMIT: [Reply(200, (b"{",), cut=True), job("done", output=1)]}
    async with backend(script) as (http, server):
        await http.run(work_on(modality="image"))
    assert server.asked[0].headers["idempotency-key"] == server.asked[1].headers["idempotency-key"]


async def is_provider_fault(script: Script, **entries: object) -> bool:
    """Run a job that fails without a retry. Return True if the failure is the provider's fault."""
    async with backend(script, **entries) as (http, _):
        with pytest.raises(WorkFailed) as failed:
            await http.run(work_on(modality="image"))
    assert failed.value.reason == "backend_error"
    return failed.value.backend_fault


def polled_at(address: str) -> Script:
    return {SUBMIT: [job("queued", urls={"get": address})]}


BY_PATH = {"poll_url": None, "poll_url_path": "urls.get"}
SMALL = {"download": True, "max_answer_bytes": 1024}


@pytest.mark.parametrize(
    ("script", "entries"),
    [
        *((polled_at(address), BY_PATH) for address in ("http://h:port/", "ftp://h/")),
        *(
            ({SUBMIT: [job("done", output=output)]}, SMALL)
            for output in ("data:image/png;base64,iVBORw=", "data:image/png", "data:;base64," + "A" * 2000)
        ),
        *(
            ({SUBMIT: [job("done", output=output)]}, {"download": True})
            for output in ({"url": "file:///etc/passwd"}, "http://h:port/", 7, {"name": "x"})
        ),
        ({"GET /f": [Reply(200, (b"x" * 500,))], SUBMIT: [job("done", output=["/f", "/f"])]}, SMALL),
        ({SUBMIT: [Reply.of({"status": "queued"})]}, {}),  # no id
        ({SUBMIT: [job("done")]}, {}),  # no result
        ({SUBMIT: [job("queued")], POLL: [Reply.of({}, 404)]}, {}),  # a job that is gone
    ],
)
async def test_misconfigured_response_is_the_providers_fault(script: Script, entries: dict[str, object]) -> None:
    assert await is_provider_fault(script, **entries)


async def test_a_rejected_job_is_the_clients_fault() -> None:
    assert not await is_provider_fault({SUBMIT: [job("rejected")]})


async def test_job_given_up_at_the_deadline_is_cancelled() -> None:
    script: Script = {SUBMIT: [job("queued")], POLL: [job("running")], CANCEL: [Reply.of({})]}
    async with backend(script) as (http, server):
        with pytest.raises(WorkFailed) as failed:
            await http.run(work_on(modality="image", deadline=trio.current_time() + 0.1))
    assert failed.value.reason == "deadline_wait"
    assert server.paths()[-1] == CANCEL


async def test_repeated_poll_failures_cancel_the_job() -> None:
    script: Script = {SUBMIT: [job("queued")], POLL: [Reply.of({}, 500)], CANCEL: [Reply.of({}, 500)]}
    async with backend(script) as (http, server):
        with pytest.raises(WorkFailed) as failed:
            await http.run(work_on(modality="image"))
    assert failed.value.reason == "backend_exhausted"
    assert server.paths() == [SUBMIT, POLL, POLL, CANCEL] * 2
