"""Export to a collector that is well, slow, hostile or missing."""

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Final

import attrs
import pytest

from common.tracing import export, spans
from common.tracing.export import exporting, is_configured
from devnet.ports import pick_free
from tests.support.fakes.trace_collector import TraceCollector

_SECONDS: Final = 20
_MARGIN_S: Final = 2.0


@attrs.define
class Reports:
    not_started_because: list[str] = attrs.field(factory=list)
    dropping_because: list[str] = attrs.field(factory=list)
    counts: list[int] = attrs.field(factory=list)

    def report_start_failure(self, reason: str) -> None:
        self.not_started_because.append(reason)

    def report_first_drop(self, reason: str) -> None:
        self.dropping_because.append(reason)

    def report_drop_count(self, count: int) -> None:
        self.counts.append(count)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    yield Reports()
    # The SDK's thread uses the module `random`. In a later property test, Hypothesis would report that as an error.
    for thread in threading.enumerate():
        if thread.name == export.SHUTDOWN_THREAD_NAME:
            thread.join(_SECONDS)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("environment", "configured"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
    ],
)
def test_tracing_is_on_only_if_configured(environment: dict[str, str], configured: bool) -> None:
    assert is_configured(environment) is configured


def test_spans_reach_the_collector(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with TraceCollector().serving() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with exporting("coordinatord", reports), spans.span("request", status=200):
            pass
        assert not spans.is_on()
    (span,) = collector.spans
    assert (span.service, span.name, span.attributes) == ("coordinatord", "request", {"status": "200"})
    assert reports == Reports()


def test_hanging_collector_costs_spans_and_three_seconds(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    from common.tracing import otlp  # noqa: PLC0415 - imports OpenTelemetry

    release = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        release.wait(_SECONDS)
        handler.close_connection = True

    collector = TraceCollector(answer=hang)
    excess, slowest = 100, 0.0
    with collector.serving():
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with exporting("svcd", reports):
            with spans.span("first"):
                pass
            collector.wait_for_request(_SECONDS)
            for _ in range(otlp.MAX_WAITING_SPANS - 1 + excess):
                began = time.perf_counter()
                with spans.span("run"):
                    pass
                slowest = max(slowest, time.perf_counter() - began)
            ending = time.monotonic()
        ended = time.monotonic()
        release.set()
    assert slowest < 1.0
    assert ended - ending < export.SHUTDOWN_TIMEOUT_S + _MARGIN_S
    assert reports.dropping_because == [f"{otlp.MAX_WAITING_SPANS} spans wait for the collector"]
    assert reports.counts == [otlp.MAX_WAITING_SPANS + excess]


def test_missing_collector_is_reported_once(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{pick_free()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with exporting("svc", reports):
        for _ in range(3):
            with spans.span("request"):
                pass
    assert reports.dropping_because == ["the collector did not accept the spans"]
    assert reports.counts == [3]


def test_endless_answer_is_not_read(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def endless(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.send_header("content-encoding", "gzip")
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                sent += handler.wfile.write(b"x" * 65_536)
        except OSError:
            pass

    with TraceCollector(answer=endless).serving() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with exporting("svcd", reports), spans.span("run"):
            pass
    assert 0 < sent < 64 << 20  # the size of the sockets' buffers
    assert reports == Reports()


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_refused_spans_are_dropped(status: int, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-length", "0")
        handler.send_header("retry-after", "86400")
        handler.end_headers()

    with TraceCollector(answer=refuse).serving() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with exporting("svcd", reports), spans.span("run"):
            pass
    assert (reports.dropping_because, reports.counts) == (["the collector did not accept the spans"], [1])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, not grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER must be otlp or none, not zipkin"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1", "schedule_delay_millis must be positive."),
    ],
)
def test_unusable_variable_is_reported_and_the_program_runs(
    name: str, value: str, reason: str, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with exporting("svcd", reports):
        assert not spans.is_on()
    assert reports.not_started_because == [reason]


def test_missing_extra_is_reported_and_the_program_runs(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.delitem(sys.modules, "common.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with exporting("svcd", reports):
        assert not spans.is_on()
    (reason,) = reports.not_started_because
    assert reason.endswith("pip install 'sealed-job-coordinator[tracing]'")
