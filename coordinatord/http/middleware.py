"""Middleware around all routes: request ids, metrics, and a response to every failure."""

import random
import time
from typing import Final

import attrs
import structlog
from prometheus_client import Histogram

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from coordinatord.base.metrics import http_requests
from coordinatord.http import responses
from coordinatord.http.bodies import CallerDisconnected
from coordinatord.http.cors import Origins, origin_of
from coordinatord.http.responses import send_response
from coordinatord.http.streaming import ResponseSourceFailed

log = structlog.get_logger(__name__)

# Route template, set by the dispatcher. Templates keep the number of metric series bounded.
ROUTE_KEY: Final = "svc.route"
# Seconds spent waiting for events, set by the dispatcher.
UNTIMED_KEY: Final = "svc.untimed"
_NO_ORIGINS: Final = Origins()
_KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"})


def new_request_id() -> str:
    # Not a secret, so a fast generator suffices.
    return f"{random.getrandbits(128):032x}"


class RequestMiddleware:
    def __init__(self, app: ASGIApp, origins: Origins = _NO_ORIGINS) -> None:
        """`origins` may read the error responses made here."""
        self._app = app
        self._origins = origins
        # Cached, because `labels` takes a lock and formats its arguments on every call.
        self._series: dict[tuple[str, str, int], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        started = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except CallerDisconnected:
            log.debug("caller gone", request_id=request_id)
        except ResponseSourceFailed as cut:
            log.warning("answer cut short", request_id=request_id, route=scope.get(ROUTE_KEY), reason=str(cut))
            raise
        except Exception:
            log.exception("request failed", request_id=request_id, method=scope["method"], route=scope.get(ROUTE_KEY))
            if status == 0:
                answer = responses.internal_error()
                headers = (*answer.headers, *self._origins.headers(origin_of(scope)))
                await send_response(sending, attrs.evolve(answer, headers=headers))
            else:
                # Part of the response has been sent. Only closing the connection signals the error to the client.
                raise
        finally:
            seconds = time.perf_counter() - started - scope.get(UNTIMED_KEY, 0.0)
            self._observe(scope.get(ROUTE_KEY, "none"), scope["method"], status, max(seconds, 0.0))

    def _observe(self, route: str, method: str, status: int, seconds: float) -> None:
        if method not in _KNOWN_METHODS:
            method = (
                # HTTP allows any method name, which would create unlimited metric series.
                "other"
            )
        series = self._series.get((route, method, status))
        if series is None:
            series = self._series[route, method, status] = http_requests.labels(route, method, str(status))
        series.observe(seconds)


async def _lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge lifespan events. The composition root starts and stops the server, so nothing else is needed."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
