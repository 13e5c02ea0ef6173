"""Spans of orders in the traces of an application that uses the SDK."""

import subprocess
import sys

# A separate process, because OpenTelemetry accepts one provider.
_APPLICATION = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import svc
from common.tracing import spans

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
svc.enable_tracing()
with trace.get_tracer("application").start_as_current_span("page"), spans.span("request"):
    pass
request, page = exporter.get_finished_spans()
assert request.parent.span_id == page.context.span_id
"""


def test_orders_are_in_the_traces_of_the_application() -> None:
    subprocess.run([sys.executable, "-c", _APPLICATION], check=True)
