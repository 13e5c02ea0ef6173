"""Middleware around all routes: request ids, metrics, CORS, limits per caller, and a response to every failure."""

import ipaddress
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import anyio
import attrs
import structlog
from prometheus_client import Histogram

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import http_requests
from coordinatord.http import responses
from coordinatord.http.bodies import CallerGone
from coordinatord.http.responses import Headers, Response, send_response
from coordinatord.http.streaming import CutShort

# CORS for the configured origins, without credentials. Without origins no header of it is sent at all.

_EXPOSED: Final = b"x-request-id, x-svc-retryable, x-svc-page-truncated, x-svc-next-offset"
_ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_REQUEST_HEADERS: Final = b"authorization, content-type, idempotency-key, if-none-match, if-range, last-event-id, range"
_VARY: Final = (b"vary", b"origin")


@attrs.frozen(slots=True)
class Origins:
    """Origins whose pages may read our responses."""

    allowed: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, origins: Iterable[str]) -> "Origins":
        return cls(frozenset(origin.encode() for origin in origins))

    def headers(self, origin: bytes | None) -> Headers:
        """CORS headers of every response to that origin."""
        if not self.allowed:
            return ()
        if origin is None or origin not in self.allowed:
            return (_VARY,)
        return ((b"access-control-allow-origin", origin), _VARY, (b"access-control-expose-headers", _EXPOSED))


class Cors:
    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = origin_of(scope)
        headers = self._origins.headers(origin)
        if origin in self._origins.allowed and _is_preflight(scope):
            preflight = (
                *headers[:2],
                (b"access-control-allow-methods", _ALLOWED_METHODS),
                (b"access-control-allow-headers", _REQUEST_HEADERS),
                (b"access-control-max-age", b"600"),
            )
            await send_response(send, Response(204, b"", preflight))
            return
        await self._app(scope, receive, _adding(send, headers))


def origin_of(scope: Scope) -> bytes | None:
    return _header(scope, b"origin")


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _adding(send: Send, headers: Headers) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return sending


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            found: bytes = value
            return found
    return None


log = structlog.get_logger(__name__)

ROUTE_KEY: Final = "svc.route"  # set by the dispatcher: the template, so that ids make no new metric
UNTIMED_KEY: Final = "svc.untimed"  # set by it, too: seconds that were spent on waiting for events
_NO_ORIGINS: Final = Origins()
_KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"})


def new_request_id() -> str:
    return f"{random.getrandbits(128):032x}"  # a name, no secret: asking the system for it would take longer


class RequestMiddleware:
    def __init__(self, app: ASGIApp, origins: Origins = _NO_ORIGINS) -> None:
        """`origins` may read what is answered here, in place of the application's answer."""
        self._app = app
        self._origins = origins
        # Looked up here: `labels` takes a lock and makes texts of its arguments each time.
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
        except CallerGone:
            log.debug("caller gone", request_id=request_id)
        except CutShort as cut:
            log.warning("answer cut short", request_id=request_id, route=scope.get(ROUTE_KEY), reason=str(cut))
            raise
        except Exception:
            log.exception("request failed", request_id=request_id, method=scope["method"], route=scope.get(ROUTE_KEY))
            if status == 0:
                answer = responses.internal_error()
                headers = (*answer.headers, *self._origins.headers(origin_of(scope)))
                await send_response(sending, attrs.evolve(answer, headers=headers))
            else:
                raise  # half an answer is out: only ending the connection tells the caller
        finally:
            seconds = time.perf_counter() - started - scope.get(UNTIMED_KEY, 0.0)
            self._observe(scope.get(ROUTE_KEY, "none"), scope["method"], status, max(seconds, 0.0))

    def _observe(self, route: str, method: str, status: int, seconds: float) -> None:
        if method not in _KNOWN_METHODS:
            method = (
                "other"  # any word is a method to HTTP: by their own names, a stranger's would be series without end
            )
        series = self._series.get((route, method, status))
        if series is None:
            series = self._series[route, method, status] = http_requests.labels(route, method, str(status))
        series.observe(seconds)


async def _lifespan(receive: Receive, send: Send) -> None:
    """The server is started and stopped by the composition root; there is nothing to do here."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


# Who calls, and how often they may: one token bucket per caller.

_TURN_WAIT_S: Final = 0.1  # tokens gather meanwhile, so that other requests of the caller find some
_MOST_CALLERS: Final = 65_536  # beyond it the one unseen for longest is forgotten, with a full bucket
CALLER_KEY: Final = "svc.caller"


def caller_of(scope: Scope, trusted: frozenset[str]) -> str:
    """The peer's address, or the nearest one in x-forwarded-for that is no proxy of ours. IPv6 counts by /64."""
    client = scope.get("client")
    address = client[0] if client else "unknown"
    if address in trusted:
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                for hop in reversed(value.decode("latin-1").split(",")):
                    address = hop.strip()
                    if address not in trusted:
                        break
    return network_of(address)


def network_of(address: str) -> str:
    """Network of an address: an IPv6 host has its choice of a /64's addresses. Some proxies write a port along."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(_without_port(address))
    except ValueError:
        return address.partition(":")[0] if address.count(":") == 1 else address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))


def _without_port(address: str) -> str:
    return address[1:].partition("]")[0] if address.startswith("[") else address


@attrs.define(slots=True)
class _Bucket:
    tokens: float
    seen: float


class TokenBuckets:
    """`per_second` sustained, `burst` at once."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait(self, caller: str, tokens: float = 1) -> float:
        """Take tokens, and return 0.0; or take none, and return the seconds after which they will be there."""
        now = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
            if len(self._buckets) > _MOST_CALLERS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.seen) * self._rate)
            bucket.seen = now
        if bucket.tokens >= tokens:
            bucket.tokens -= tokens
            return 0.0
        return (tokens - bucket.tokens) / self._rate

    async def turn(self, caller: str, tokens: float) -> None:
        """Take tokens once they are there: for work that an answer still owes its caller."""
        tokens = min(tokens, self._burst)
        while (wait := self.wait(caller, tokens)) > 0:  # noqa: ASYNC110 - tokens come with time
            await anyio.sleep(max(wait, _TURN_WAIT_S))


class CallerLimits:
    """Refuses callers that ask too often, before anything is done for them."""

    def __init__(self, app: ASGIApp, buckets: TokenBuckets, trusted_proxies: frozenset[str]) -> None:
        self._app = app
        self._buckets = buckets
        self._trusted = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope[CALLER_KEY] = caller_of(scope, self._trusted)
        wait = self._buckets.wait(caller)
        if wait > 0:
            too_often = Retryable("busy", "too many requests from this caller", retry_after=max(1, round(wait)))
            await send_response(send, responses.retry_later(too_often))
            return
        await self._app(scope, receive, send)
