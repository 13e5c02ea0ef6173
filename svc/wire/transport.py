"""Requests to the coordinator: typed answers, typed errors, retries by its own word.

Works on asyncio and on trio. One transport is one connection pool.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import attrs
import httpx
import msgspec

from common import strict_json
from common.refusal import Refused
from svc.core.clock import ServerClock
from svc.core.retries import RetryPolicy
from svc.errors import ApiError, ConnectionFailed
from svc.wire.answers import UnfitAnswer, opened, pieces_of, whole

R = TypeVar("R")
Sleep = Callable[[float], Awaitable[None]]

# Of an answer in the coordinator's place: every one of its own has an id, and its errors say whether to retry.
_OF_PROXIES: Final = frozenset({502, 503, 504})
_RETRYABLE: Final = "x-svc-retryable"
REQUEST_SECONDS: Final = 90.0  # a relay answers within a minute or says that it did not
_OK: Final = frozenset({200, 201})


@attrs.define
class Transport:
    http: httpx.AsyncClient
    clock: ServerClock
    retries: RetryPolicy
    sleep: Sleep = anyio.sleep

    async def get(
        self,
        path: str,
        kind: type[R],
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        return read(await self.send("GET", path, params=given(params), headers=headers), kind)

    async def post(
        self, path: str, kind: type[R], body: Mapping[str, Any], *, safe: bool, headers: Mapping[str, str] | None = None
    ) -> R:
        return read(await self.send("POST", path, json=body, safe=safe, headers=headers), kind)

    async def send(
        self, method: str, path: str, *, safe: bool = True, expected: frozenset[int] = _OK, **request: Any
    ) -> httpx.Response:
        """The answer, when its status is expected; otherwise the error, after the retries that it allows.

        `safe`: making the request twice does no harm, so that it is made again when no answer came, and on an error
        whose header says that it may succeed later. Without it, it is made once.
        """
        attempt = 0
        while True:
            try:
                response = await self.once(method, path, **request)
                if response.status_code in expected:
                    return response
                error: ApiError | ConnectionFailed = error_of(response)
            except ConnectionFailed as failed:
                error = failed
            if not (safe and error.retryable and attempt < self.retries.most):
                raise error
            await self.sleep(self.retries.pause(attempt))
            attempt += 1

    async def once(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One attempt, whatever its status. Raises ConnectionFailed when there was no whole answer, or that of a proxy
        which had none: what was sent may have arrived all the same."""
        try:
            async with opened(self.http, method, path, **request) as unread:
                if is_of_a_proxy(unread):
                    raise proxy_failure(method, path, unread)
                try:
                    response = await whole(unread)
                except UnfitAnswer as unfit:
                    raise unexpected(unread, str(unfit)) from None
        except httpx.RequestError as failed:
            raise ConnectionFailed(f"{method} {path}: {type(failed).__name__}: {failed}") from failed
        self.clock.heard(response.headers.get("date"))
        return response

    @asynccontextmanager
    async def streaming(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of a GET's body, as they come. Retried as any other read until it began, and not after."""
        attempt, began = 0, False
        while True:
            try:
                async with opened(self.http, "GET", path, headers=headers) as response:
                    try:
                        if response.status_code in _OK:
                            began = True
                            async with pieces_of(response) as pieces:
                                yield pieces
                            return
                        error: ApiError | ConnectionFailed
                        if is_of_a_proxy(response):
                            error = proxy_failure("GET", path, response)
                        else:
                            error = error_of(await whole(response))
                    except UnfitAnswer as unfit:
                        raise unexpected(response, str(unfit)) from None
            except httpx.RequestError as failed:
                error = ConnectionFailed(f"GET {path}: {type(failed).__name__}: {failed}")
            if began or not error.retryable or attempt == self.retries.most:
                raise error
            await self.sleep(self.retries.pause(attempt))
            attempt += 1


def read(response: httpx.Response, kind: type[R]) -> R:
    """The body as a record. Decimal strings become integers."""
    try:
        return msgspec.json.decode(response.content, type=kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as malformed:
        raise unexpected(response, f"the answer is malformed: {malformed}") from malformed


def error_of(response: httpx.Response) -> ApiError:
    """The coordinator's error, whichever of its forms it has; a stranger's answer is an internal error of its."""
    try:
        body = strict_json.parse(response.content)
    except Refused:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return unexpected(response, f"{response.status_code} without an error body")
    type_ = str(error.get("type", "internal_error"))
    code, param = error.get("code"), error.get("param")
    return ApiError.class_of(type_)(
        str(error.get("message", "")),
        type_=type_,
        status=response.status_code,
        code=code if isinstance(code, str) else None,
        param=param if isinstance(param, str) else None,
        request_id=response.headers.get("x-request-id"),
        retryable=_retryable(response),
    )


def unexpected(response: httpx.Response, what: str) -> ApiError:
    """For an answer that is none of this interface."""
    place = f"{response.request.method} {response.request.url.path}"
    return ApiError.class_of("internal_error")(
        f"{place}: {what}",
        type_="internal_error",
        status=response.status_code,
        request_id=response.headers.get("x-request-id"),
        retryable=_retryable(response),
    )


def _retryable(response: httpx.Response) -> bool:
    return bool(response.headers.get(_RETRYABLE, "").lower() == "true")


def is_of_a_proxy(response: httpx.Response) -> bool:
    of_the_coordinator = _RETRYABLE in response.headers or "x-request-id" in response.headers
    return response.status_code in _OF_PROXIES and not of_the_coordinator


def proxy_failure(method: str, path: str, response: httpx.Response) -> ConnectionFailed:
    """Not retryable: the header that says so is missing. What only reads again and again, as a wait does, goes on."""
    return ConnectionFailed(f"{method} {path}: a proxy answered {response.status_code}", retryable=False)


def given(params: Mapping[str, object] | None) -> dict[str, str]:
    """Query parameters without those that are None."""
    return {name: str(value) for name, value in (params or {}).items() if value is not None}
