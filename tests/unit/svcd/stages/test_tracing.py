"""Spans of a job's stages, in the trace of its order."""

from typing import Any, Final

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import answer
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import model_for

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
ORDER_SPAN: Final = "00f067aa0ba902b7"
CONTEXT: Final = f"00-{TRACE}-{ORDER_SPAN}-01"
MODEL = model_for("demo/text", {"text"})


def with_traces(market: Market, traces: object) -> None:
    """Answer polls with these rows."""

    async def script(perform: Any) -> httpx.Response:
        return answer(200, {**perform().json(), "traces": traces})

    market.always["poll"] = script


def names_below(spans: tuple[ReadableSpan, ...], parent: int) -> list[str]:
    return sorted(span.name for span in spans if span.parent is not None and span.parent.span_id == parent)


async def test_stages_are_in_the_trace_of_the_order(
    market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, [{"job_id": job, "traceparent": CONTEXT}])
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    spans = made_spans.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert names_below(spans, int(ORDER_SPAN, 16)) == ["poll"]
    (poll,) = (span for span in spans if span.name == "poll")
    assert names_below(spans, poll.context.span_id) == ["claim", "open", "run", "seal", "settle"]


@pytest.mark.parametrize(
    "traces",
    [
        None,
        "many",
        {"job_id": CONTEXT},
        [None, 7, [], {}, {"traceparent": CONTEXT}, {"job_id": 7, "traceparent": CONTEXT}],
        [{"job_id": "0x" + "00" * 32, "traceparent": CONTEXT}] * 2_000,
    ],
)
async def test_malformed_contexts_are_ignored(
    traces: object, market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, traces)
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    (poll,) = (span for span in made_spans.get_finished_spans() if span.name == "poll")
    assert poll.parent is None


@pytest.mark.parametrize("sent", ["junk", 7, None, CONTEXT * 1_000, CONTEXT.replace("00-", "01-", 1)])
async def test_malformed_context_of_a_job_begins_a_new_trace(
    sent: object, market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, [{"job_id": job, "traceparent": sent}])
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    (poll,) = (span for span in made_spans.get_finished_spans() if span.name == "poll")
    assert poll.parent is None
