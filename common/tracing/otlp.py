"""Export spans over OTLP/HTTP with OpenTelemetry's SDK. Imported only if tracing is configured.

A collector that is down, slow or hostile can only cause the loss of spans:

- at most `MAX_WAITING_SPANS` spans wait or are being sent; further spans are dropped and counted,
- one thread sends spans, and only this thread waits for the collector,
- at most `MAX_RESPONSE_BYTES` of a response are read, without decompression, and redirects are not followed.
"""

import logging
import threading
from collections.abc import Sequence
from importlib.metadata import version
from io import BytesIO
from typing import Any, Final, Self

import attrs
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from common.extras import DISTRIBUTION
from common.tracing.report import TraceReport

MAX_WAITING_SPANS: Final = 2048
MAX_RESPONSE_BYTES: Final = 65_536
_UNNAMED_SERVICE_PREFIX: Final = "unknown_service"


@attrs.define(eq=False)
class SpanBacklog:
    """Counts of the spans that wait or are being sent, and of the dropped spans."""

    report: TraceReport
    _waiting: int = 0
    _dropped: int = 0
    _closed: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def admit(self) -> bool:
        """Count a waiting span and return True. If too many spans wait, count a dropped span and return False."""
        with self._lock:
            if self._waiting < MAX_WAITING_SPANS:
                self._waiting += 1
                return True
        self._count_dropped(1, f"{MAX_WAITING_SPANS} spans wait for the collector")
        return False

    def record_export(self, count: int, failure: str | None) -> None:
        """Record an export of `count` spans. After a success, report how many spans were dropped before."""
        with self._lock:
            if self._closed:
                return  # `close` has already counted these spans
            self._waiting -= count
        if failure is None:
            self._report_dropped()
        else:
            self._count_dropped(count, failure)

    def close(self) -> None:
        """Count the spans that still wait as dropped, and report the total."""
        with self._lock:
            self._closed = True
        if self._waiting:
            self._count_dropped(self._waiting, "the program ended before the collector accepted the waiting spans")
        self._report_dropped()

    def _count_dropped(self, count: int, reason: str) -> None:
        with self._lock:
            is_first = not self._dropped
            self._dropped += count
        if is_first:
            self.report.report_first_drop(reason)

    def _report_dropped(self) -> None:
        with self._lock:
            count, self._dropped = self._dropped, 0
        if count:
            self.report.report_drop_count(count)


class _CountingExporter(SpanExporter):
    def __init__(self, inner: SpanExporter, backlog: SpanBacklog) -> None:
        self._inner = inner
        self._backlog = backlog

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._inner.export(spans)
        except Exception as error:  # the SDK would log this error for every batch
            self._backlog.record_export(len(spans), type(error).__name__)
            return SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        self._backlog.record_export(len(spans), "the collector did not accept the spans" if failed else None)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class _BoundedProcessor(SpanProcessor):
    """Processor that drops and counts spans while too many wait. The SDK's processor would not count dropped spans."""

    def __init__(self, exporter: SpanExporter, backlog: SpanBacklog) -> None:
        self._backlog = backlog
        self._inner: SpanProcessor = BatchSpanProcessor(
            _CountingExporter(exporter, backlog), max_queue_size=MAX_WAITING_SPANS
        )

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled and self._backlog.admit():
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _BoundedResponseSession(requests.Session):
    """Session that reads only the first `MAX_RESPONSE_BYTES` of a response."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        with super().send(request, **{**options, "stream": True, "allow_redirects": False}) as response:
            short = requests.Response()
            short.request, short.url = request, response.url
            short.status_code, short.reason = response.status_code, response.reason
            short.headers = response.headers
            short.raw = BytesIO(response.raw.read(MAX_RESPONSE_BYTES, decode_content=False))
            return short


@attrs.frozen
class RunningExport:
    """OpenTelemetry provider that exports spans, with the counts of its spans and the exporter that sends them."""

    provider: TracerProvider
    backlog: SpanBacklog
    _sender: SpanExporter

    @classmethod
    def start(cls, service: str, report: TraceReport) -> Self:
        """Start the export. Raise ValueError or OSError if the SDK rejects a variable."""
        # The SDK logs each failed attempt. `SpanBacklog` reports only the first failure.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        backlog = SpanBacklog(report)
        provider = TracerProvider(resource=_build_resource(service), shutdown_on_exit=False)
        sender = OTLPSpanExporter(session=_BoundedResponseSession())
        provider.add_span_processor(_BoundedProcessor(sender, backlog))
        return cls(provider, backlog, sender)

    def drop_waiting_spans(self) -> None:
        """Drop the spans that still wait, and stop the retries of the sending thread."""
        self.backlog.close()
        self._sender.shutdown()


def _build_resource(service: str) -> Resource:
    """Return the resource of all spans from the OTEL_* variables. `service` is the default name of the service."""
    from_variables = Resource.create()
    defaults = {SERVICE_VERSION: version(DISTRIBUTION), SERVICE_NAME: service}
    if not str(from_variables.attributes[SERVICE_NAME]).startswith(_UNNAMED_SERVICE_PREFIX):
        del defaults[SERVICE_NAME]
    return from_variables.merge(Resource(defaults))
