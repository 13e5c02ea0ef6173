"""Requests to the coordinator: typed answers, typed errors, retries by its own word.

Works on asyncio and on trio. One transport is one connection pool.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import anyio
import attrs
import httpx
import msgspec

from common import strict_json
from common.plain_answers import IDENTITY, require_plain, require_short
from common.refusal import Refused
from svc.core.clock import RetryPolicy, ServerClock
from svc.errors import ApiError, ConnectionFailed, OrderRefused

# Reading answers: as they were sent, and never more of them than they may have.

LONGEST_ANSWER: Final = 16 << 20  # of the coordinator: its pages are cut at 4 MiB
LONGEST_CONTENT: Final = 1 << 30  # of a file or a result: no coordinator takes larger ones
_MOST_REDIRECTS: Final = 5


class UnfitAnswer(httpx.DecodingError):
    """An answer that is encoded, or longer than it may be."""


# What httpx lets through from the layers below it: a damaged record of TLS, a name that cannot be encoded, a port out
# of range (in a group, from attempts at several addresses).
_FOREIGN_ERRORS: Final = (
    OSError,
    ValueError,
    OverflowError,
    ExceptionGroup,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    httpx.StreamError,
)


@contextmanager
def request_errors() -> Iterator[None]:
    """Raise httpx.RequestError in place of every failure of a request. Only requests may run in the block."""
    try:
        yield
    except Refused:  # by what makes the request's content
        raise
    except httpx.InvalidURL as error:
        raise httpx.RequestError(str(error)) from error
    except _FOREIGN_ERRORS as error:
        raise httpx.NetworkError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def opened(
    http: httpx.AsyncClient, method: str, url: str, *, headers: Mapping[str, str] | None = None, **request: Any
) -> AsyncIterator[httpx.Response]:
    """Send a request, and yield the answer with its body unread: read it with `whole` or `pieces_of`. Redirects are not
    followed. Raise OrderRefused when a name or an id makes the URL invalid, else httpx.RequestError."""
    asked = {**(headers or {}), **IDENTITY}
    async with AsyncExitStack() as stack:
        with request_errors():
            try:
                answering = http.stream(method, url, headers=asked, follow_redirects=False, **request)
                response = await stack.enter_async_context(answering)
            except httpx.InvalidURL as invalid:
                raise OrderRefused(f"{url!r} cannot be requested: {invalid}", code="invalid_value") from None
        yield response


@asynccontextmanager
async def followed(http: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """What a GET leads to: on the same host, or at an https address, so that an open door of a gateway is no way into
    the network that this runs in. httpx would read, and unfold, the bodies of the redirects on the way."""
    with request_errors():
        request = http.build_request("GET", url, headers=dict(IDENTITY))
    for _ in range(_MOST_REDIRECTS):
        with request_errors():
            response = await http.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            following = response.next_request
        finally:
            await response.aclose()
        if following.url.scheme != "https" and following.url.host != request.url.host:
            where = f"{following.url.scheme}://{following.url.host}"
            raise httpx.RequestError(f"a redirect to {where}: another host must speak https", request=request)
        request = following
    raise httpx.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)


async def whole(response: httpx.Response, longest: int = LONGEST_ANSWER) -> httpx.Response:
    """The same answer with its body read. Raises UnfitAnswer, with the rest of the body unread."""
    body = bytearray()
    async with pieces_of(response, longest) as pieces:
        async for piece in pieces:
            body += piece
    return httpx.Response(response.status_code, headers=response.headers, content=bytes(body), request=response.request)


@asynccontextmanager
async def pieces_of(response: httpx.Response, longest: int = LONGEST_CONTENT) -> AsyncIterator[AsyncIterator[bytes]]:
    """A streamed body in pieces of the size that sealing is fastest with; closed on the way out, read whole or not.
    Raises UnfitAnswer."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise UnfitAnswer(encoded.message, request=response.request) from None
    raw = raw_pieces(response, 65_536)
    pieces = _up_to(longest, raw, response)
    try:
        yield pieces
    finally:
        await pieces.aclose()  # type: ignore[attr-defined] # a generator
        await raw.aclose()


async def raw_pieces(response: httpx.Response, size: int | None = None) -> AsyncGenerator[bytes, None]:
    """Yield a body as it was sent, in pieces of `size` or as they come. Raises httpx.RequestError."""
    raw = response.aiter_raw(size)
    try:
        with request_errors():
            async for piece in raw:
                yield piece
    finally:
        await raw.aclose()  # type: ignore[attr-defined] # a generator


async def _up_to(longest: int, raw: AsyncIterator[bytes], response: httpx.Response) -> AsyncIterator[bytes]:
    length = 0
    async for piece in raw:
        length += len(piece)
        try:
            require_short(length, longest)
        except Refused as long:
            raise UnfitAnswer(long.message, request=response.request) from None
        yield piece


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
