"""Collector of spans on loopback: it decodes OTLP/HTTP requests, and can hang or answer badly instead."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_POLL_S: Final = 0.05


@attrs.frozen
class SeenSpan:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    links: tuple[str, ...]
    raw: bytes = attrs.field(repr=False)


@attrs.define(eq=False)
class TraceCollector:
    """`answer` replaces the usual answer of a request: it gets the handler, with the body read."""

    answer: Callable[[BaseHTTPRequestHandler], None] | None = None
    spans: list[SeenSpan] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)
    requests: int = 0
    changed: threading.Condition = attrs.field(factory=threading.Condition)
    url: str = ""

    def wait_for(self, seconds: float, is_complete: Callable[[list[SeenSpan]], bool]) -> list[SeenSpan]:
        with self.changed:
            found = self.changed.wait_for(lambda: is_complete(self.spans), seconds)
            assert found, f"after {seconds:g} s there are {sorted((span.service, span.name) for span in self.spans)}"
            return list(self.spans)

    def wait_for_request(self, seconds: float) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.requests > 0, seconds)

    def receive(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            self.requests += 1
            self.bodies.append(body)
            for of_resource in request.resource_spans:
                service = _texts(of_resource.resource.attributes)["service.name"]
                for of_scope in of_resource.scope_spans:
                    self.spans += [_seen(service, span) for span in of_scope.spans]
            self.changed.notify_all()

    @contextmanager
    def serving(self) -> Iterator["TraceCollector"]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.receive(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                if collector.answer is not None:
                    collector.answer(self)
                    return
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Print nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


def _seen(service: str, span: Any) -> SeenSpan:
    return SeenSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _texts(span.attributes),
        tuple(link.span_id.hex() for link in span.links),
        span.SerializeToString(),
    )


def _texts(attributes: Any) -> dict[str, str]:
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        found[each.key] = str(getattr(each.value, kind))
    return found
