"""Middleware around all routes that adds request ids, records metrics and sends a response for every failure."""

import random
import time
from typing import Final

import attrs
import structlog
from prometheus_client import Histogram

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from common.tracing import spans
from coordinatord.base.metrics import http_requests
from coordinatord.http import responses
from coordinatord.http.bodies import ClientDisconnected
from coordinatord.http.cors import Origins, origin_of
from coordinatord.http.responses import send_response
from coordinatord.http.streaming import ResponseSourceFailed

log = structlog.get_logger(__name__)

# Scope key of the route template, which the dispatcher sets. Metrics are labelled with the template, because labels
# with paths would create series without bound.
ROUTE_KEY: Final = "svc.route"
# Scope key of the seconds that do not count as response time. The dispatcher sets this key for streams and held polls.
UNTIMED_KEY: Final = "svc.untimed"
_NO_ORIGINS: Final = Origins()
_KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"})
# Other methods are not traced, because reads and polls would fill a trace with thousands of spans.
_TRACED_METHODS: Final = frozenset({"POST", "PUT", "DELETE"})


def new_request_id() -> str:
    # A request id is not a secret, so a fast generator suffices.
    return f"{random.getrandbits(128):032x}"


class RequestMiddleware:
    def __init__(self, app: ASGIApp, origins: Origins = _NO_ORIGINS) -> None:
        """`origins` are allowed to read the error responses that this middleware sends."""
        self._app = app
        self._origins = origins
        # Histograms by labels. Cached, because `labels()` takes a lock and formats its arguments on every call.
        self._series: dict[tuple[str, str, int], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        if spans.is_on() and scope["method"] in _TRACED_METHODS:
            with spans.span("request", parent=_trace_parent(scope), kind="server", method=scope["method"]):
                await self._handle_http(scope, receive, send)
            return
        await self._handle_http(scope, receive, send)

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        started = time.perf_counter()
        status = 0

        async def send_with_request_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_request_id)
        except ClientDisconnected:
            log.debug("caller disconnected", request_id=request_id)
        except ResponseSourceFailed as failure:
            log.warning("answer cut short", request_id=request_id, route=scope.get(ROUTE_KEY), reason=str(failure))
            raise
        except Exception:
            log.exception("request failed", request_id=request_id, method=scope["method"], route=scope.get(ROUTE_KEY))
            if status == 0:
                response = responses.internal_error()
                headers = (*response.headers, *self._origins.headers(origin_of(scope)))
                await send_response(send_with_request_id, attrs.evolve(response, headers=headers))
            else:
                # Part of the response has been sent. Only closing the connection signals the error to the client.
                raise
        finally:
            seconds = time.perf_counter() - started - scope.get(UNTIMED_KEY, 0.0)
            self._record_request(scope.get(ROUTE_KEY, "none"), scope["method"], status, max(seconds, 0.0))
            spans.add_attributes(route=scope.get(ROUTE_KEY, "none"), status=status)

    def _record_request(self, route: str, method: str, status: int, seconds: float) -> None:
        # HTTP allows any method name, and each name would create another metric series.
        if method not in _KNOWN_METHODS:
            method = "other"
        series = self._series.get((route, method, status))
        if series is None:
            series = self._series[route, method, status] = http_requests.labels(route, method, str(status))
        series.observe(seconds)


def _trace_parent(scope: Scope) -> str | None:
    """Return the caller's trace context if the request has a single, valid `traceparent` header, otherwise None."""
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    return spans.read_traceparent(values[0]) if len(values) == 1 else None


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge lifespan events. The composition root starts and stops the server, so nothing else is needed."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
