"""Limits per caller: one token bucket for each."""

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
