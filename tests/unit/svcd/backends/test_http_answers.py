import time
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate

import httpx
import pytest

from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import error_for_status, read_error, read_json_object, read_retry_after
from svcd.base.end_reasons import WorkFailed
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
