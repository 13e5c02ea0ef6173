"""Layers around every request: failures, traces, origins and the limits of callers."""

import json
from typing import Final

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.daemon.asgi import Receive, Scope, Send
from common.tracing import spans
from coordinatord.base.metrics import http_requests
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets, caller_of
from coordinatord.http.cors import CorsMiddleware, Origins
from coordinatord.http.middleware import ROUTE_KEY, RequestMiddleware
from coordinatord.http.responses import Response, send_response
from tests.unit.coordinatord.http.asgi import ask, scope

ORIGIN = "https://app.example"


async def empty_object(_: Scope, __: Receive, send: Send) -> None:
    await send_response(send, Response(200, b"{}"))


async def broken(_: Scope, __: Receive, ___: Send) -> None:
    raise KeyError("the secret of the house")


async def test_unexpected_failure_is_a_500_without_details(capsys: pytest.CaptureFixture[str]) -> None:
    answer = await ask(RequestMiddleware(broken), scope())
    assert answer.status == 500
    assert answer.headers["x-svc-retryable"] == "false"
    assert answer.headers["x-request-id"]
    assert json.loads(answer.body)["error"]["type"] == "internal_error"
    assert b"secret" not in answer.body
    assert answer.headers["x-request-id"] in capsys.readouterr().out


async def test_failure_is_readable_by_allowed_origins_only() -> None:
    frame = RequestMiddleware(broken, Origins.of([ORIGIN]))
    allowed = await ask(frame, scope(origin=ORIGIN))
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (500, ORIGIN)
    assert "x-svc-retryable" in allowed.headers["access-control-expose-headers"]
    assert allowed.headers["vary"] == "origin"
    other = await ask(frame, scope(origin="https://other.example"))
    assert not [name for name in other.headers if name.startswith("access-control")]


async def test_failure_after_the_head_ends_the_connection() -> None:
    async def broken(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError

    with pytest.raises(KeyError):
        await ask(RequestMiddleware(broken), scope())


async def test_methods_of_a_strangers_own_make_one_series() -> None:
    def methods() -> set[str]:
        samples = [sample for metric in http_requests.collect() for sample in metric.samples]
        return {sample.labels["method"] for sample in samples}

    before = methods()
    for n in range(20):
        await ask(RequestMiddleware(empty_object), scope(f"METHOD-{n}"))
    assert methods() - before <= {"other"}


async def test_websocket_is_refused() -> None:
    closed = []

    async def send(message: dict[str, object]) -> None:
        closed.append(message["type"])

    await RequestMiddleware(broken)({"type": "websocket"}, None, send)  # type: ignore[arg-type] # never received from
    assert closed == ["websocket.close"]


async def test_lifespan_is_completed() -> None:
    messages = iter(["lifespan.startup", "lifespan.shutdown"])
    said = []

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    async def send(message: dict[str, object]) -> None:
        said.append(message["type"])

    await RequestMiddleware(broken)({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"


async def application(request: Scope, _: Receive, send: Send) -> None:
    request[ROUTE_KEY] = "/v1/jobs/{id}/cancel"
    with spans.span("submission"):
        await send_response(send, Response(201, b"{}"))


async def test_request_continues_the_trace_of_its_caller(made_spans: InMemorySpanExporter) -> None:
    secret = "Bearer svc_sess_secret"
    await ask(RequestMiddleware(application), scope("POST", "/v1/jobs/1", traceparent=CONTEXT, authorization=secret))
    submission, request = made_spans.get_finished_spans()
    assert request.name == "request"
    assert dict(request.attributes or {}) == {"method": "POST", "route": "/v1/jobs/{id}/cancel", "status": 201}
    assert f"{request.context.trace_id:032x}" == TRACE
    assert submission.parent is not None
    assert submission.parent.span_id == request.context.span_id


@pytest.mark.parametrize("sent", [[b"junk"], [CONTEXT.encode() + b"0"], [CONTEXT.encode()] * 2, [b"x" * 65_536]])
async def test_malformed_context_begins_a_new_trace(sent: list[bytes], made_spans: InMemorySpanExporter) -> None:
    request = scope("POST", "/v1/jobs")
    request["headers"] += [(b"traceparent", value) for value in sent]
    assert (await ask(RequestMiddleware(application), request)).status == 201
    (_, span) = made_spans.get_finished_spans()
    assert span.parent is None


async def test_reads_make_no_spans(made_spans: InMemorySpanExporter) -> None:
    await ask(RequestMiddleware(empty_object), scope("GET", "/evm/jobs", traceparent=CONTEXT))
    assert made_spans.get_finished_spans() == ()


CORS = CorsMiddleware(empty_object, Origins.of([ORIGIN]))


async def test_allowed_origin_may_read_specified_headers() -> None:
    answer = await ask(CORS, scope(origin=ORIGIN))
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-expose-headers"] == (
        "x-request-id, x-svc-retryable, x-svc-page-truncated, x-svc-next-offset"
    )
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("origin", ["https://app.example.evil.example", "http://app.example", "null"])
async def test_other_origins_get_no_cors_headers(origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        answer = await ask(CORS, scope(method, origin=origin, access_control_request_method="POST"))
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_preflight_is_answered_for_the_route() -> None:
    answer = await ask(CORS, scope("OPTIONS", origin=ORIGIN, access_control_request_method="POST"))
    assert answer.status == 204
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert allowed >= {"authorization", "content-type", "idempotency-key", "range"}  # every header that routes read


PROXY = frozenset({"10.0.0.1", "10.0.0.2"})


def test_bucket_gives_its_burst_and_then_its_rate() -> None:
    now = 100.0
    buckets = TokenBuckets(per_second=2, burst=3, clock=lambda: now)
    assert [buckets.take_or_get_wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take_or_get_wait_s("a") == 0.5
    now += 0.5
    assert buckets.take_or_get_wait_s("a") == 0.0
    now += 1000
    assert [buckets.take_or_get_wait_s("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_one_callers_requests_take_nothing_from_another() -> None:
    buckets = TokenBuckets(per_second=1, burst=1, clock=lambda: 100.0)
    assert buckets.take_or_get_wait_s("a") == 0.0
    assert buckets.take_or_get_wait_s("a") > 0
    assert buckets.take_or_get_wait_s("b") == 0.0


@pytest.mark.parametrize(
    ("client", "forwarded", "caller"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),  # not a trusted proxy, so its header is ignored
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        # entries to the left come from the caller and are ignored
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("10.0.0.1", "2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("10.0.0.1", "[2001:DB8:1:2::7]:4711", "2001:db8:1:2::/64"),
        ("10.0.0.1", "2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("10.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
    ],
)
def test_caller_is_the_nearest_untrusted_address(client: str, forwarded: str | None, caller: str) -> None:
    headers = {"x_forwarded_for": forwarded} if forwarded is not None else {}
    assert caller_of(scope(client=client, **headers), PROXY) == caller


async def test_caller_over_its_rate_is_answered_429_with_a_time() -> None:
    limited = CallerLimits(empty_object, TokenBuckets(per_second=0.1, burst=1, clock=lambda: 100.0), frozenset())
    assert (await ask(limited, scope())).status == 200
    second = await ask(limited, scope())
    assert (second.status, second.headers["retry-after"], second.headers["x-svc-retryable"]) == (429, "10", "true")
    assert json.loads(second.body)["error"]["type"] == "busy"
    assert (await ask(limited, scope(client="192.0.2.2"))).status == 200


async def test_caller_waits_for_a_token() -> None:
    buckets = TokenBuckets(per_second=20, burst=2)
    await buckets.wait_and_take("a", 2)
    assert buckets.take_or_get_wait_s("a") > 0
    with anyio.fail_after(5):
        await buckets.wait_and_take("a", 4)  # the maximum
    assert buckets.take_or_get_wait_s("a") > 0, "they were taken"
