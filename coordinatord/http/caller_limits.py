"""Limit the request rate of each caller with a token bucket."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio
import attrs

from common.daemon.asgi import ASGIApp, Receive, Scope, Send
from coordinatord.base.errors import Retryable
from coordinatord.http import responses
from coordinatord.http.responses import send_response

# Minimum wait of `wait_and_take`, so that other requests of the same caller get tokens as well.
_MIN_WAIT_S: Final = 0.1
# Above this number of callers, the least recently used bucket is dropped. A caller without a bucket gets a full one.
_MAX_CALLERS: Final = 65_536
# Scope key of the caller's address, which `CallerLimits` sets.
CALLER_KEY: Final = "svc.caller"


def caller_of(scope: Scope, trusted_proxies: frozenset[str]) -> str:
    """Return the address whose requests are counted together: an IPv4 address or the /64 network of an IPv6 address.

    The address is that of the connection's peer. If the peer is a trusted proxy, return the nearest untrusted address
    in x-forwarded-for.
    """
    client = scope.get("client")
    address = client[0] if client else "unknown"
    if address in trusted_proxies:
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                for hop in reversed(value.decode("latin-1").split(",")):
                    address = hop.strip()
                    if address not in trusted_proxies:
                        break
    return rate_limit_network(address)


def rate_limit_network(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, because a host can use any address of its /64.
    Strip the port that some proxies add."""
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
    refilled_at: float


class TokenBuckets:
    """Token buckets, one per caller. A bucket gets `per_second` tokens per second and holds at most `burst`."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take_or_get_wait_s(self, caller: str, tokens: float = 1) -> float:
        """Take tokens and return 0.0, or take none and return the seconds until enough are available."""
        now = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
            if len(self._buckets) > _MAX_CALLERS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.refilled_at) * self._rate)
            bucket.refilled_at = now
        if bucket.tokens >= tokens:
            bucket.tokens -= tokens
            return 0.0
        return (tokens - bucket.tokens) / self._rate

    async def wait_and_take(self, caller: str, tokens: float) -> None:
        """Wait until enough tokens are available, and take them. Use this for work during a response."""
        tokens = min(tokens, self._burst)
        while (wait := self.take_or_get_wait_s(caller, tokens)) > 0:  # noqa: ASYNC110 - a bucket has no event to wait for
            await anyio.sleep(max(wait, _MIN_WAIT_S))


class CallerLimits:
    """Middleware that rejects a request whose caller exceeds the rate limit, before any other work."""

    def __init__(self, app: ASGIApp, buckets: TokenBuckets, trusted_proxies: frozenset[str]) -> None:
        self._app = app
        self._buckets = buckets
        self._trusted = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope[CALLER_KEY] = caller_of(scope, self._trusted)
        wait = self._buckets.take_or_get_wait_s(caller)
        if wait > 0:
            too_many = Retryable(
                "busy", "too many requests from this address; wait as retry-after says", retry_after=max(1, round(wait))
            )
            await send_response(send, responses.retry_later(too_many))
            return
        await self._app(scope, receive, send)
