"""Spans of requests: their trace and their attributes."""

from typing import Final

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.daemon.asgi import Receive, Scope, Send
from common.tracing import spans
from coordinatord.http.middleware import ROUTE_KEY, RequestMiddleware
from coordinatord.http.responses import Response, send_response
from tests.unit.coordinatord.http.asgi import ask, scope

pytestmark = pytest.mark.anyio

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
    async def read(_: Scope, __: Receive, send: Send) -> None:
        await send_response(send, Response(200, b"{}"))

    await ask(RequestMiddleware(read), scope("GET", "/evm/jobs", traceparent=CONTEXT))
    assert made_spans.get_finished_spans() == ()
