"""ASGI types, and access to request headers."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]  # names in lower case, as in `scope["headers"]`


def header_values(headers: RawHeaders, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in headers if each == name]


def first_header(headers: RawHeaders, name: bytes, default: str = "") -> str:
    return next(iter(header_values(headers, name)), default)
