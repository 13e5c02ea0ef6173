"""Answers, downloads, retries and lists of models of model servers over HTTP."""

import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate
from typing import Final

import httpx
import pytest
import trio

from svcd.backends.attempts import AttemptPolicy, BackendActivity, TryAgain
from svcd.backends.downloads import FileDownloader
from svcd.backends.http_answers import error_for_status, read_error, read_json_object, read_retry_after
from svcd.backends.servers import parse_model_list
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import WorkOutput
from tests.support.fakes.provider_work import work_on
from tests.support.fakes.streamed import StreamedTransport

DATE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_a_refused_request_is_the_clients_fault(status: int) -> None:
    trouble = error_for_status(status, {}, "")
    assert isinstance(trouble, WorkFailed)
    assert (trouble.reason, trouble.backend_fault) == ("backend_error", False)


@pytest.mark.parametrize("status", [301, 401, 402, 403, 404, 405, 501])
def test_every_other_lasting_refusal_is_the_providers(status: int) -> None:
    trouble = error_for_status(status, {}, "")
    assert isinstance(trouble, WorkFailed)
    assert (trouble.reason, trouble.backend_fault) == ("backend_error", True)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_temporary_failures_are_retried(status: int) -> None:
    trouble = error_for_status(status, {"retry-after": "7"}, "busy")
    assert isinstance(trouble, TryAgain)
    assert (trouble.detail, trouble.retry_after_s) == (f"the backend answered {status} busy", 7)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "12"}, 12),
        ({"retry-after": "1", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": format_datetime(DATE.replace(minute=2), usegmt=True), "date": format_datetime(DATE)}, 120),
        ({"retry-after": formatdate(0, usegmt=True)}, 0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_the_wait_asked_for_is_read_in_all_its_spellings(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds


def test_date_without_server_clock_uses_the_local_clock() -> None:
    wait = read_retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert wait == pytest.approx(3600, abs=5)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"error": {"message": "the prompt \'secret words\' is too long", "code": "too_long"}}', "too_long"),
        (
            b'{"error": {"message": "secret words", "code": "secret words", "type": "BadRequestError"}}',
            "BadRequestError",
        ),
        (b"secret words", ""),
    ],
)
async def test_of_an_errors_body_only_its_short_code_is_kept(body: bytes, named: str) -> None:
    async with (
        httpx.AsyncClient(transport=StreamedTransport(lambda _: httpx.Response(400, content=body))) as http,
        http.stream("GET", "http://backend") as response,
    ):
        trouble = await read_error(response)
    assert isinstance(trouble, WorkFailed)
    assert trouble.detail == f"the backend answered 400 {named}".strip()


def test_answer_of_countless_values_is_not_parsed() -> None:
    with pytest.raises(WorkFailed, match="JSON values"):
        read_json_object(b'{"data": [' + b"[]," * (1 << 22) + b"0]}")


SERVER: Final = "http://127.0.0.1:1/jobs"


async def download(output: object) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await FileDownloader(client, SERVER, 1 << 20).embed_files(output)


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 64 + ".b", "127.0.0.1:99999"])
def test_address_without_a_valid_host_is_retried(host: str) -> None:
    with pytest.raises(TryAgain):
        trio.run(download, f"http://{host}/x")


def test_nested_lists_are_no_files() -> None:
    with pytest.raises(WorkFailed):
        trio.run(download, json.loads("[" * 900 + "]" * 900))


OUTPUT = WorkOutput("done", 1)


def failing(*troubles: Exception) -> Callable[[BackendActivity], Awaitable[WorkOutput]]:
    """Return attempts that raise these errors in turn, and then succeed."""
    waiting = list(troubles)

    async def attempt(_: BackendActivity) -> WorkOutput:
        await trio.lowlevel.checkpoint()
        if waiting:
            raise waiting.pop(0)
        return OUTPUT

    return attempt


async def test_attempts_repeat_with_growing_waits() -> None:
    retried = metrics.backend_retries.labels("counted")
    before = retried._value.get()
    began = trio.current_time()
    output = await AttemptPolicy(3, 1, 60).run(work_on(model="counted"), failing(TryAgain("a"), TryAgain("b")))
    assert output is OUTPUT
    assert 3 <= trio.current_time() - began <= 3 * 1.25
    assert retried._value.get() - before == 2


async def test_the_last_failure_is_exhaustion_and_the_backends_fault() -> None:
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(2, 1, 60).run(work_on(), failing(TryAgain("a"), TryAgain("b")))
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_exhausted", True)
    assert "b" in failed.value.detail


async def test_a_wait_that_the_server_asked_for_is_kept_to_the_second() -> None:
    began = trio.current_time()
    await AttemptPolicy(2, 1, 60).run(work_on(), failing(TryAgain("busy", retry_after_s=90)))
    assert trio.current_time() - began == 90


async def test_a_wait_that_would_end_past_the_deadline_is_not_begun() -> None:
    began = trio.current_time()
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(2, 1, 60).run(work_on(deadline=began + 90), failing(TryAgain("busy", retry_after_s=90)))
    assert (failed.value.reason, trio.current_time()) == ("deadline_wait", began)


@pytest.mark.parametrize(
    ("before", "alive", "fault"),
    [([], True, False), ([], False, True), ([TryAgain("first")], True, True)],
    ids=["long work", "silence", "after a failure"],
)
async def test_an_attempt_under_way_at_the_deadline_is_cancelled(
    before: list[Exception], alive: bool, fault: bool
) -> None:
    waiting = list(before)

    async def attempt(activity: BackendActivity) -> WorkOutput:
        if waiting:
            raise waiting.pop()
        activity.has_reacted = alive
        await trio.sleep_forever()
        return OUTPUT

    deadline = trio.current_time() + 30
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(4, 1, 60).run(work_on(deadline=deadline), attempt)
    assert (failed.value.reason, failed.value.backend_fault, trio.current_time()) == ("deadline_wait", fault, deadline)


async def test_a_failure_that_no_attempt_would_mend_ends_it_at_once() -> None:
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(4, 1, 60).run(work_on(), failing(WorkFailed("backend_error", "no")))
    assert failed.value.detail == "no"


@pytest.mark.parametrize("owner", [[], {}, None, 7, "nobody"])
def test_unknown_owner_is_ignored(owner: object) -> None:
    served = parse_model_list(json.dumps({"data": [{"id": "m", "owned_by": owner}]}).encode())
    assert served is not None
    assert (served.names, served.software) == (("m",), None)
