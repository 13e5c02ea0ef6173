"""Send requests to the coordinator. Answers and errors are typed.

The header `x-svc-retryable` of an error response decides about retries. Runs on asyncio and on trio.
"""

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol, TypeVar

import anyio
import attrs
import httpx
import msgspec

from common import strict_json
from common.refusal import Refused
from common.tracing import spans
from svc.core.retries import RetryPolicy
from svc.errors import ApiError, ConnectionFailed, OrderRefused
from svc.wire.answers import InvalidRequestUrl, UnacceptableAnswer, open_response, read_response, unencoded_pieces

__all__ = ["ApiError", "ConnectionFailed", "RetryPolicy", "Transport"]

REQUEST_TIMEOUT_S: Final = 90.0  # the coordinator answers within a minute, even if a transaction is not mined
ATTEMPT_TIMEOUT_S: Final = 300.0
# Limit of the `retry-after` header, because longer waits would miss deadlines of jobs.
_MAX_RETRY_AFTER_S: Final = 60.0
# Maximum number of JSON values in an answer. Parsing 16 MiB of tiny values would block the event loop for 10 s.
_MAX_JSON_VALUES: Final = 1 << 18
_OK_STATUSES: Final = frozenset({200, 201})
# The coordinator's answers have a request id or a retry header. If both are missing, a proxy sent this status.
_PROXY_STATUSES: Final = frozenset({502, 503, 504})
_RETRYABLE_HEADER: Final = "x-svc-retryable"
_TRACE_HEADER: Final = "traceparent"
_WHOLE_SECONDS_PATTERN: Final = re.compile(r"[0-9]{1,9}", re.ASCII)

R = TypeVar("R")
Sleep = Callable[[float], Awaitable[None]]


class ProxyAnswered(ConnectionFailed):
    """A proxy answered instead of the coordinator. Not retryable, because the retry header is missing."""


class Clock(Protocol):
    """Local clock, corrected by the `date` headers of the coordinator's answers."""

    def observe(self, date: float) -> None:
        """Correct the clock by an answer's `date`, in Unix seconds. Call this before the answer's body is read."""

    def now(self) -> int:
        """Return the Unix seconds of the coordinator's clock."""


@attrs.define
class Transport:
    """Sends requests to one coordinator. `attempt_timeout_s` limits each attempt that has no deadline.

    Without this limit, a server that sends a byte at a time could block the client. Uploads of files have no limit.
    """

    http: httpx.AsyncClient
    clock: Clock
    retries: RetryPolicy
    sleep: Sleep = anyio.sleep
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S

    async def get(
        self,
        path: str,
        kind: type[R],
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        return read_record(await self.send("GET", path, params=query_parameters(params), headers=headers), kind)

    async def post(
        self,
        path: str,
        kind: type[R],
        body: Mapping[str, Any],
        *,
        retry: bool,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        return read_record(await self.send("POST", path, json=body, retry=retry, headers=headers), kind)

    async def send(
        self,
        method: str,
        path: str,
        *,
        retry: bool = True,
        resend: bool = True,
        deadline: float | None = None,
        expected: frozenset[int] = _OK_STATUSES,
        **request: Any,
    ) -> httpx.Response:
        """Send a request, with retries. Return an answer with an `expected` status. Otherwise raise the last error.

        With `retry`, the request is retried if the error response's `x-svc-retryable` header allows it. If `resend` is
        also True, the request is retried if no answer arrived. Retries end at the `deadline`, in the event loop's time.
        Without a deadline, the policy limits the number of retries.
        """
        attempt = 0
        while True:
            try:
                response = await self.send_once(method, path, deadline=deadline, **request)
                if response.status_code in expected:
                    return response
                error: ApiError | ConnectionFailed = read_error(response)
                again, wait = self.may_retry(error), _retry_after_seconds(response)
            except ConnectionFailed as failed:
                error, again, wait = failed, resend and self.may_retry(failed), 0.0
            pause = self.retry_pause(attempt, wait, deadline)
            if not (retry and again) or pause is None:
                raise error
            await self.sleep(pause)
            attempt += 1

    def may_retry(self, failed: ApiError | ConnectionFailed) -> bool:
        """Return True if the error allows a retry."""
        return failed.retryable or (isinstance(failed, ProxyAnswered) and self.retries.after_proxy)

    def retry_pause(self, attempt: int, retry_after: float, deadline: float | None) -> float | None:
        """Return the seconds before the next retry, or None if no further retry is allowed."""
        pause = self.retries.pause(attempt)
        if deadline is None:
            return max(pause, retry_after) if attempt < self.retries.max_retries else None
        left = deadline - anyio.current_time()
        if retry_after < left:  # otherwise ignore the header, so that a last attempt is made before the deadline
            pause = max(pause, retry_after)
        return pause if pause < left else None

    async def send_once(
        self, method: str, path: str, *, deadline: float | None = None, **request: Any
    ) -> httpx.Response:
        """Send the request once. Return its answer with any status.

        Raises ConnectionFailed if the answer is incomplete or from a proxy. The coordinator may still have received the
        request."""
        default_s = math.inf if "files" in request else self.attempt_timeout_s
        seconds = default_s if deadline is None else deadline - anyio.current_time()
        if method != "GET" and (context := spans.current_context()) is not None:
            request["headers"] = {**(request.get("headers") or {}), _TRACE_HEADER: context}
        try:
            with anyio.fail_after(max(0.0, seconds)):
                async with self._open_response(method, path, **request) as unread:
                    self._correct_clock(unread)
                    if is_from_proxy(unread):
                        raise proxy_failure(method, path, unread)
                    try:
                        response = await read_response(unread)
                    except UnacceptableAnswer as unacceptable:
                        raise unexpected_answer(unread, str(unacceptable)) from None
                    if strict_json.may_have_more_values(response.content, _MAX_JSON_VALUES):
                        raise unexpected_answer(response, f"the answer has more than {_MAX_JSON_VALUES} JSON values")
                    return response
        except httpx.RequestError as failed:
            raise ConnectionFailed(f"{method} {path}: {type(failed).__name__}: {failed}") from failed
        except TimeoutError as late:
            raise ConnectionFailed(f"{method} {path}: no answer before the deadline") from late

    @asynccontextmanager
    async def stream_pieces(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a GET, and yield the pieces of its body as they arrive. Only errors before the body are retried."""
        attempt, began = 0, False
        while True:
            error: ApiError | ConnectionFailed
            try:
                async with self._open_response("GET", path, headers=headers) as response:
                    try:
                        if response.status_code in _OK_STATUSES:
                            began = True
                            async with unencoded_pieces(response) as pieces:
                                yield pieces
                            return
                        if is_from_proxy(response):
                            error = proxy_failure("GET", path, response)
                        else:
                            error = read_error(await read_response(response))
                    except UnacceptableAnswer as unacceptable:
                        raise unexpected_answer(response, str(unacceptable)) from None
            except httpx.RequestError as failed:
                error = ConnectionFailed(f"GET {path}: {type(failed).__name__}: {failed}")
            if began or not error.retryable or attempt == self.retries.max_retries:
                raise error
            await self.sleep(self.retries.pause(attempt))
            attempt += 1

    @asynccontextmanager
    async def _open_response(self, method: str, path: str, **request: Any) -> AsyncIterator[httpx.Response]:
        try:
            async with open_response(self.http, method, path, **request) as response:
                yield response
        except InvalidRequestUrl as invalid:
            raise OrderRefused(f"{path!r} cannot be requested: {invalid}", code="invalid_value") from None

    def _correct_clock(self, response: httpx.Response) -> None:
        """Correct the clock by the answer's date, unless the answer is from a cache."""
        date = _parse_date(response.headers.get("date"))
        if date is not None and "age" not in response.headers:
            self.clock.observe(date)


def read_record(response: httpx.Response, kind: type[R]) -> R:
    """Return the body as a record. Decimal strings become integers."""
    try:
        return msgspec.json.decode(response.content, type=kind, strict=False)
    except strict_json.DECODE_ERRORS as malformed:
        raise unexpected_answer(response, f"the answer is malformed: {malformed}") from malformed


def read_error(response: httpx.Response) -> ApiError:
    """Return the error of an answer. An answer without an error body becomes an internal error."""
    try:
        body = strict_json.parse(response.content)
    except Refused:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return unexpected_answer(response, f"the coordinator answered {response.status_code} without an error body")
    type_ = str(error.get("type", "internal_error"))
    code, param = error.get("code"), error.get("param")
    return ApiError.class_of(type_)(
        str(error.get("message", "")),
        type_=type_,
        status=response.status_code,
        code=code if isinstance(code, str) else None,
        param=param if isinstance(param, str) else None,
        request_id=response.headers.get("x-request-id"),
        retryable=_is_retryable(response),
    )


def unexpected_answer(response: httpx.Response, problem: str) -> ApiError:
    """Return an internal error for an answer that does not follow the API."""
    route = f"{response.request.method} {response.request.url.path}"
    return ApiError.class_of("internal_error")(
        f"{route}: {problem}",
        type_="internal_error",
        status=response.status_code,
        request_id=response.headers.get("x-request-id"),
        retryable=_is_retryable(response),
    )


def _retry_after_seconds(response: httpx.Response) -> float:
    """Return the seconds in the `retry-after` header, up to a limit."""
    text = response.headers.get("retry-after", "")
    return min(_MAX_RETRY_AFTER_S, float(text)) if _WHOLE_SECONDS_PATTERN.fullmatch(text) else 0.0


def _parse_date(text: str | None) -> float | None:
    """Return the Unix seconds of a `date` header, which is always in UTC."""
    try:
        date = parsedate_to_datetime(text) if text else None
    except (ValueError, OverflowError):  # OverflowError for years out of range
        return None
    return None if date is None else date.replace(tzinfo=date.tzinfo or UTC).timestamp()


def _is_retryable(response: httpx.Response) -> bool:
    return bool(response.headers.get(_RETRYABLE_HEADER, "").lower() == "true")


def is_from_proxy(response: httpx.Response) -> bool:
    from_coordinator = _RETRYABLE_HEADER in response.headers or "x-request-id" in response.headers
    return response.status_code in _PROXY_STATUSES and not from_coordinator


def proxy_failure(method: str, path: str, response: httpx.Response) -> ConnectionFailed:
    return ProxyAnswered(f"{method} {path}: a proxy answered {response.status_code}", retryable=False)


def query_parameters(params: Mapping[str, object] | None) -> dict[str, str]:
    """Return the query parameters that are not None."""
    return {name: str(value) for name, value in (params or {}).items() if value is not None}
