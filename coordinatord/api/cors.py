"""CORS for the configured origins, without credentials. Without origins this is not installed at all."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinatord.api.answers import Answer
from coordinatord.api.sending import send_answer

_EXPOSED: Final = b"x-request-id, x-svc-retryable, x-svc-page-truncated, x-svc-next-offset"
_METHODS: Final = b"GET, HEAD, POST, PUT, OPTIONS"
_REQUEST_HEADERS: Final = b"authorization, content-type, idempotency-key, if-none-match, if-range, range"
_VARY: Final = (b"vary", b"origin")


class Cors:
    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        if origin is None or origin not in self._origins:
            await self._app(scope, receive, _adding(send, [_VARY]))
            return
        allowed = [(b"access-control-allow-origin", origin), _VARY]
        if scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None:
            preflight = (
                *allowed,
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", _REQUEST_HEADERS),
                (b"access-control-max-age", b"600"),
            )
            await send_answer(send, Answer(204, b"", preflight))
            return
        allowed.append((b"access-control-expose-headers", _EXPOSED))
        await self._app(scope, receive, _adding(send, allowed))


def _adding(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
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
