import time
from collections.abc import AsyncIterator
from email.utils import formatdate

import anyio
import attrs
import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.tracing import spans
from svc import errors
from svc.core.clock import ServerClock
from svc.core.retries import RetryPolicy
from svc.errors import (
    AuthenticationFailed,
    Busy,
    ChainUnreachable,
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    NotFound,
    PinnerUnavailable,
    SvcError,
)
from svc.wire.transport import Transport
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svc.fake_coordinator import MODEL, Answer, Dropped, FakeCoordinator, Told, error, failing

ROUTE = "GET /v1/models/demo/text"
LOW = RetryPolicy(jitter=lambda low, high: low)


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


async def test_retryable_error_is_retried_after_growing_pauses(coordinator: FakeCoordinator) -> None:
    away = failing(503, "chain_unreachable", retryable=True)
    coordinator.tell(ROUTE, away, away, away, Answer(200, MODEL))
    assert (await coordinator.client(retries=LOW).models.get("demo/text")).svc.model_id == 1
    times = [asked.at - coordinator.asked[0].at for asked in coordinator.asked]
    assert times == pytest.approx([0, 0.5, 1.5, 3.5])


async def test_retries_end_after_three(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, failing(429, "busy", retryable=True))
    with pytest.raises(Busy):
        await coordinator.client().models.get("demo/text")
    assert len(coordinator.asked) == 4


@pytest.mark.parametrize(
    "answer", [failing(503, "chain_unreachable"), Answer(500, b"oops"), Answer(429, error("busy"))]
)
async def test_only_the_header_allows_a_retry(coordinator: FakeCoordinator, answer: Answer) -> None:
    coordinator.tell(ROUTE, answer)
    with pytest.raises((ChainUnreachable, InternalError, Busy)):
        await coordinator.client().models.get("demo/text")
    assert len(coordinator.asked) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("headers", [{}, {"x-request-id": "r1"}])
async def test_unavailable_is_not_retried_without_the_header(
    coordinator: FakeCoordinator, status: int, headers: dict[str, str]
) -> None:
    coordinator.tell(ROUTE, Answer(status, b"upstream is down", headers))
    with pytest.raises(SvcError) as failed:
        await coordinator.client().models.get("demo/text")
    assert (len(coordinator.asked), failed.value.retryable) == (1, False)


async def test_final_status_is_retried_if_the_header_says_so(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, failing(400, "invalid_request_error", retryable=True), Answer(200, MODEL))
    assert await coordinator.client().models.get("demo/text")


async def test_read_is_made_again_after_a_dropped_connection(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, Dropped(), Answer(200, MODEL))
    assert await coordinator.client().models.get("demo/text")
    coordinator.tell(ROUTE, Dropped())
    with pytest.raises(ConnectionFailed) as failed:
        await coordinator.client().models.get("demo/text")
    assert failed.value.retryable


async def test_error_carries_all_that_the_coordinator_said(coordinator: FakeCoordinator) -> None:
    body = error("invalid_request_error", "cap_overflow", "rate_in")
    coordinator.tell(ROUTE, Answer(400, body, {"x-request-id": "abc", "x-svc-retryable": "false"}))
    with pytest.raises(InvalidRequest) as refused:
        await coordinator.client().models.get("demo/text")
    said = refused.value
    assert (said.type, said.code, said.param, said.request_id, said.retryable, said.status, said.message) == (
        "invalid_request_error",
        "cap_overflow",
        "rate_in",
        "abc",
        False,
        400,
        "as told",
    )


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("invalid_request_error", errors.InvalidRequest),
        ("authentication_error", errors.AuthenticationFailed),
        ("invalid_op_signature", errors.InvalidOpSignature),
        ("not_found", errors.NotFound),
        ("busy", errors.Busy),
        ("not_ready", errors.NotReady),
        ("chain_unreachable", errors.ChainUnreachable),
        ("relay_unavailable", errors.RelayUnavailable),
        ("pinner_unavailable", errors.PinnerUnavailable),
        ("receipt_timeout", errors.ReceiptTimeout),
        ("internal_error", errors.InternalError),
        ("of_next_year", errors.ApiError),
    ],
)
async def test_every_type_of_error_has_its_class(
    coordinator: FakeCoordinator, type_: str, kind: type[errors.ApiError]
) -> None:
    coordinator.tell(ROUTE, failing(400, type_))
    with pytest.raises(errors.ApiError) as refused:
        await coordinator.client().models.get("demo/text")
    assert (type(refused.value), refused.value.type) == (kind, type_)


async def test_error_of_a_form_that_is_specified_apart_is_read(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, Answer(404, {"error": {"message": "m", "type": "not_found", "code": "model_not_found"}}))
    with pytest.raises(NotFound) as refused:
        await coordinator.client().models.get("demo/text")
    assert (refused.value.code, refused.value.param, refused.value.retryable) == ("model_not_found", None, False)


async def test_undecodable_answer_counts_as_none(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, Answer(200, b"no gzip", {"content-encoding": "gzip"}))
    with pytest.raises(ConnectionFailed):
        await coordinator.client().models.get("demo/text")


async def test_malformed_answer_is_an_internal_error(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, Answer(200, {"id": 5}))
    with pytest.raises(InternalError):
        await coordinator.client().models.get("demo/text")


@pytest.mark.parametrize("date", ["", "yesterday", f"Mon, 01 Jan {10**20} 00:00:00 GMT"])
async def test_invalid_date_is_ignored(coordinator: FakeCoordinator, date: str) -> None:
    coordinator.tell(ROUTE, Answer(200, MODEL, {"date": date}))
    client = coordinator.client()
    await client.models.get("demo/text")
    assert client.clock_skew() == 0


@pytest.mark.parametrize(("headers", "skew"), [({}, 300), ({"age": "20"}, 0)])
async def test_clock_hears_the_date_of_answers_but_not_of_cached_ones(
    coordinator: FakeCoordinator, headers: dict[str, str], skew: int
) -> None:
    date = formatdate(time.time() + 300, usegmt=True)
    coordinator.tell(ROUTE, Answer(200, MODEL, {"date": date, **headers}))
    client = coordinator.client()
    await client.models.get("demo/text")
    assert client.clock_skew() == pytest.approx(skew, abs=2)


@pytest.mark.parametrize(("told", "waited"), [("7", 7), ("86400", 60), ("soon", 0.5), ("-5", 0.5)])
async def test_retry_waits_for_retry_after(coordinator: FakeCoordinator, told: str, waited: float) -> None:
    busy = failing(429, "busy", retryable=True)
    coordinator.tell(ROUTE, attrs.evolve(busy, headers={**busy.headers, "retry-after": told}), Answer(200, MODEL))
    await coordinator.client(retries=LOW).models.get("demo/text")
    first, second = coordinator.asked
    assert second.at - first.at == pytest.approx(waited)


async def test_pages_are_followed_while_full_or_cut(coordinator: FakeCoordinator) -> None:
    row = {"provider_id": "1", "model_id": "1", "sla": "3600", "rate_in": str(2**128 - 1), "rate_out": "0"}
    cut = {"x-svc-page-truncated": "true", "x-svc-next-offset": "3"}
    coordinator.tell(
        "GET /evm/asks",
        Answer(200, {"asks": [row] * 3}, cut),
        Answer(200, {"asks": [row] * 1000}, {"x-svc-page-truncated": "false"}),
        Answer(200, {"asks": [row] * 5}, {"x-svc-page-truncated": "false"}),
    )
    asks = await coordinator.client().market.asks(model=1, limit=None)
    assert (len(asks), asks[0].rate_in) == (1008, 2**128 - 1)
    assert [asked.query for asked in coordinator.asked] == [
        {"model": "1", "limit": "1000", "offset": offset} for offset in ("0", "3", "1003")
    ]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        ({"asks": []}, "0"),
        ({"asks": []}, "-1"),
        ({"asks": []}, "x"),
        ({"asks": []}, ""),
        ({"asks": [{}]}, "1"),
        ({}, "1"),
    ],
    ids=["same", "backwards", "no number", "nothing left", "malformed rows", "no rows"],
)
async def test_broken_pages_are_an_internal_error(coordinator: FakeCoordinator, body: object, offset: str) -> None:
    headers = {"x-svc-page-truncated": "true", "x-svc-next-offset": offset}
    coordinator.tell("GET /evm/asks", Answer(200, body, headers))
    with pytest.raises(InternalError):
        await coordinator.client().market.asks(limit=None)
    assert len(coordinator.asked) == 1


async def test_answer_that_trickles_is_given_up() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while anyio.current_time() < began + 10_000:
            yield b" "
            await anyio.sleep(50)

    began = anyio.current_time()
    answering = StreamedTransport(lambda _: httpx.Response(200, content=trickle()))
    async with httpx.AsyncClient(transport=answering, base_url="http://coordinator") as http:
        with pytest.raises(ConnectionFailed, match="before the deadline"):
            await Transport(http, ServerClock(), RetryPolicy(max_retries=0)).get("/v1/models", dict[str, object])


async def test_answer_of_countless_values_is_not_parsed(coordinator: FakeCoordinator) -> None:
    coordinator.tell(ROUTE, Answer(200, b'{"values": [' + b"[]," * (1 << 18) + b"0]}"))
    with pytest.raises(InternalError, match="JSON values"):
        await coordinator.client().models.get("demo/text")


@pytest.mark.parametrize("value", [b'"\xff"', b"[" * 9999 + b"]" * 9999], ids=["no UTF-8", "deep nesting"])
async def test_unreadable_json_is_an_internal_error(coordinator: FakeCoordinator, value: bytes) -> None:
    coordinator.tell(ROUTE, Answer(200, b'{"id": ' + value + b', "more": ' + value + b"}"))
    with pytest.raises(InternalError):
        await coordinator.client().models.get("demo/text")
    coordinator.tell("GET /evm/asks", Answer(200, b'{"asks": [{"provider_id": ' + value + b"}]}"))
    with pytest.raises(InternalError):
        await coordinator.client().market.asks()


async def test_pages_without_an_end_are_not_kept(coordinator: FakeCoordinator) -> None:
    body = b'{"asks": [], "filler": "' + b"x" * (10 << 20) + b'"}'
    headers = [{"x-svc-page-truncated": "true", "x-svc-next-offset": str(offset)} for offset in range(1, 20)]
    coordinator.tell("GET /evm/asks", *[Answer(200, body, each) for each in headers])
    with pytest.raises(InternalError, match="more than 67108864 bytes"):
        await coordinator.client().market.asks(limit=None)
    assert len(coordinator.asked) == 7


async def test_no_more_than_the_limit_is_asked_for(coordinator: FakeCoordinator) -> None:
    row = {"model_id": "1", "sla": "3600", "rate_in": "1", "rate_out": "0"}
    coordinator.tell("GET /evm/asks/floors", Answer(200, {"floors": [row] * 2}))
    assert len(await coordinator.client().market.floors(limit=2)) == 2
    assert len(coordinator.asked) == 1


@pytest.mark.parametrize("trouble", [failing(503, "pinner_unavailable", "object_missing", retryable=True), Dropped()])
async def test_content_is_requested_until_it_arrives(coordinator: FakeCoordinator, trouble: Told) -> None:
    give_sessions(coordinator, lives=86_400)
    coordinator.tell("GET /v1/files/f/content", trouble, trouble, trouble, Answer(200, b"there"))
    client = coordinator.client(retries=LOW)
    assert await client.files.content("f") == b"there"
    times = [asked.at - coordinator.to("GET /v1/files/f/content")[0].at for asked in coordinator.asked[-4:]]
    assert times == pytest.approx([0, 0.5, 1.5, 3.5])
    coordinator.tell("GET /v1/files/f/content", trouble)
    with pytest.raises((PinnerUnavailable, ConnectionFailed)):
        await client.files.content("f")


async def test_session_is_minted_once_and_used_for_all(coordinator: FakeCoordinator) -> None:
    give_sessions(coordinator, lives=86_400)
    client = coordinator.client()
    await client.files.get("f")
    await client.files.get("f")
    assert coordinator.routes().count("POST /auth/session") == 1
    assert [asked.headers["authorization"] for asked in coordinator.to("GET /v1/files/f")] == ["Bearer t1"] * 2


@pytest.mark.parametrize(("lives", "second"), [(59, "t2"), (75, "t1")])
async def test_session_is_renewed_in_its_last_minute_and_not_before(
    coordinator: FakeCoordinator, lives: int, second: str
) -> None:
    give_sessions(coordinator, lives=lives)
    client = coordinator.client()
    await client.files.get("f")
    await client.files.get("f")
    bearers = [asked.headers["authorization"] for asked in coordinator.to("GET /v1/files/f")]
    assert bearers == ["Bearer t1", f"Bearer {second}"]


async def test_refused_session_is_renewed_once(coordinator: FakeCoordinator) -> None:
    give_sessions(coordinator, lives=86_400)
    refused = failing(401, "authentication_error", "invalid_session")
    found = coordinator.script["GET /v1/files/f"][0]
    coordinator.tell("GET /v1/files/f", refused, found)
    assert (await coordinator.client().files.get("f")).id == "f"
    coordinator.tell("GET /v1/files/f", refused)
    with pytest.raises(AuthenticationFailed):
        await coordinator.client().files.get("f")
    assert len(coordinator.to("GET /v1/files/f")) == 4


async def test_failed_sign_in_is_retried_with_a_new_nonce(coordinator: FakeCoordinator) -> None:
    give_sessions(coordinator, lives=86_400)
    session = coordinator.script["POST /auth/session"]
    coordinator.tell("POST /auth/session", failing(503, "chain_unreachable", retryable=True), Dropped(), *session)
    await coordinator.client().files.get("f")
    assert coordinator.routes().count("GET /auth/nonce") == 3


def give_sessions(coordinator: FakeCoordinator, *, lives: int) -> None:
    """Script sessions t1, t2, …, and one file."""
    counter = iter(range(1, 100))
    coordinator.tell("GET /auth/nonce", Answer(200, {"nonce": "ab" * 16, "expires_at": 1, "chain_id": 31337}))
    coordinator.tell(
        "POST /auth/session",
        lambda _: Answer(200, {"token": f"t{next(counter)}", "expires_at": int(time.time()) + lives}),
    )
    file = {"id": "f", "object": "file", "bytes": 1, "created_at": 1, "expires_at": 2, "filename": "f"}
    coordinator.tell(
        "GET /v1/files/f",
        Answer(200, file | {"purpose": "input", "status": "uploaded", "svc": {"cid": "bafyf", "lines": 0}}),
    )


async def test_writes_inside_a_span_carry_its_context(
    coordinator: FakeCoordinator, made_spans: InMemorySpanExporter
) -> None:
    coordinator.tell("POST /v1/jobs/check", Answer(200, {}))
    transport = coordinator.client().orders.account.transport
    with spans.span("request"):
        context = spans.current_context()
        await transport.send("POST", "/v1/jobs/check", json={}, headers={"prefer": "wait"})
        await transport.send("GET", "/v1/models/demo/text")
    await transport.send("POST", "/v1/jobs/check", json={})
    assert [asked.headers.get("traceparent") for asked in coordinator.asked] == [context, None, None]
    assert coordinator.asked[0].headers["prefer"] == "wait"
