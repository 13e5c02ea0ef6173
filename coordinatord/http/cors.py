"""Add CORS headers to responses for the configured origins. Requests with cookies are not allowed."""

from collections.abc import Iterable
from typing import Final

import attrs

from common.daemon.asgi import ASGIApp, Message, Receive, Scope, Send
from coordinatord.http.responses import Headers, Response, send_response

_EXPOSED_HEADERS: Final = b"x-request-id, x-svc-retryable, x-svc-page-truncated, x-svc-next-offset"
_ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_REQUEST_HEADERS: Final = b"authorization, content-type, idempotency-key, if-none-match, if-range, last-event-id, range"
_VARY: Final = (b"vary", b"origin")


@attrs.frozen(slots=True)
class Origins:
    """Origins that are allowed to read responses."""

    allowed: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, origins: Iterable[str]) -> "Origins":
        return cls(frozenset(origin.encode() for origin in origins))

    def headers(self, origin: bytes | None) -> Headers:
        """Return the CORS headers of responses to requests from `origin`."""
        if not self.allowed:
            return ()
        if origin is None or origin not in self.allowed:
            return (_VARY,)
        return ((b"access-control-allow-origin", origin), _VARY, (b"access-control-expose-headers", _EXPOSED_HEADERS))


class CorsMiddleware:
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
        await self._app(scope, receive, _wrap_send(send, headers))


def origin_of(scope: Scope) -> bytes | None:
    return _find_header(scope, b"origin")


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _find_header(scope, b"access-control-request-method") is not None


def _wrap_send(send: Send, headers: Headers) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with_headers


def _find_header(scope: Scope, searched: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == searched:
            header: bytes = value
            return header
    return None
