"""Spans, their contexts, and what never gets into them."""

import subprocess
import sys
from typing import Final

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.tracing import spans

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT: Final = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED: Final = f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (CONTEXT, CONTEXT),
        (CONTEXT.encode(), CONTEXT),
        (UNSAMPLED, UNSAMPLED),
        (f"00-{TRACE}-{SPAN}-ff", CONTEXT),
        (f"00-{TRACE}-{SPAN}-02", UNSAMPLED),
    ],
)
def test_valid_context_is_read_with_its_sampling_flag(sent: object, read: str) -> None:
    assert spans.read_traceparent(sent) == read


@pytest.mark.parametrize(
    "sent",
    [
        None,
        7,
        "",
        {},
        CONTEXT + "-00",
        CONTEXT + "\n",
        CONTEXT.upper(),
        CONTEXT.encode() * 20_000,
        f"01-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0",
        f"00-{TRACE}-{SPAN}-0g",
        f"00_{TRACE}_{SPAN}_01",
        CONTEXT.replace("4", "٤"),
        b"\xff" * 55,
    ],
)
def test_malformed_context_is_ignored(sent: object) -> None:
    assert spans.read_traceparent(sent) is None


def test_without_tracing_nothing_is_made_or_imported() -> None:
    program = (
        "import sys; from common.tracing import spans;"
        "import svc.client, svc.serve.serving, svcd.run.app, coordinatord.run.app;"
        "assert spans.span('request') is spans.span('relay', parent=None, job='1');"
        "assert spans.record_span('relay', started=1.0, ended=2.0) is None and spans.current_context() is None;"
        "spans.add_attributes(status=1); spans.mark_failed('x');"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_span_is_below_the_span_around(made_spans: InMemorySpanExporter) -> None:
    with spans.span("request", parent=CONTEXT, kind="server", method="POST"), spans.span("submission"):
        inside = spans.current_context()
        spans.add_attributes(status=201)
    submission, request = made_spans.get_finished_spans()
    assert request.parent is not None
    assert submission.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, SPAN)
    assert submission.parent.span_id == request.context.span_id
    assert inside == f"00-{TRACE}-{submission.context.span_id:016x}-01"
    assert dict(submission.attributes or {}) == {"status": 201}
    assert spans.current_context() is None


def test_unsampled_context_makes_no_span_and_is_passed_on(made_spans: InMemorySpanExporter) -> None:
    with spans.span("request", parent=UNSAMPLED):
        inside = spans.current_context()
        recorded = spans.record_span("relay", parent=inside, started=1.0, ended=2.0)
    assert made_spans.get_finished_spans() == ()
    assert inside is not None
    assert recorded is not None
    assert not spans.is_sampled(inside)
    assert not spans.is_sampled(recorded)


def test_span_of_an_error_has_its_class_and_not_its_text(made_spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="a secret"), spans.span("run"):
        raise ValueError("a secret")
    (span,) = made_spans.get_finished_spans()
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}
    assert not span.status.is_ok
    assert "secret" not in span.to_json()


def test_recorded_span_has_given_times_and_limited_links(made_spans: InMemorySpanExporter) -> None:
    links = [f"00-{TRACE}-{number:016x}-01" for number in range(1, spans.MAX_LINKS + 20)]
    context = spans.record_span("block", parent=CONTEXT, links=links, started=10.5, ended=12.0, block=7)
    (span,) = made_spans.get_finished_spans()
    assert (span.start_time, span.end_time) == (10_500_000_000, 12_000_000_000)
    assert [link.context.span_id for link in span.links] == list(range(1, spans.MAX_LINKS + 1))
    assert context == f"00-{TRACE}-{span.context.span_id:016x}-01"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_task_has_the_context_of_the_task_that_started_it(made_spans: InMemorySpanExporter) -> None:
    seen: dict[str, str | None] = {}

    async def work(name: str) -> None:
        with spans.span(name):
            await anyio.lowlevel.checkpoint()
            seen[name] = spans.current_context()

    with spans.span("request", parent=CONTEXT):
        async with anyio.create_task_group() as tasks:
            for name in ("one", "two"):
                tasks.start_soon(work, name)
    by_name = {span.name: span for span in made_spans.get_finished_spans()}
    for name in ("one", "two"):
        parent = by_name[name].parent
        assert parent is not None
        assert parent.span_id == by_name["request"].context.span_id
        assert seen[name] == f"00-{TRACE}-{by_name[name].context.span_id:016x}-01"
