"""Orders of svc serve belong to the trace of the request that they answer."""

from pathlib import Path
from typing import Final

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.svc.serve.market import ServedMarket

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"
HELLO: Final = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}


async def test_order_continues_the_trace_of_the_caller(
    market: ServedMarket, tmp_path: Path, made_spans: InMemorySpanExporter
) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post("/v1/chat/completions", HELLO, headers={"traceparent": CONTEXT})
    assert heard.status == 200
    (span,) = made_spans.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == ("request", TRACE)
    assert dict(span.attributes or {}) == {"status": 200}
    sent = {asked.headers["traceparent"] for asked in market.coordinator.to("POST /v1/jobs")}
    assert sent == {f"00-{TRACE}-{span.context.span_id:016x}-01"}
