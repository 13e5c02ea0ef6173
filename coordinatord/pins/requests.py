"""Requests to the pin store: signed, retried while it may help, and its failures named.

`store_unavailable`: no answer, or a 5xx. `store_rejected`: it refuses us. `object_missing`: it does not hold the key.
"""

import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx

from common.plain_answers import IDENTITY, require_plain
from common.refusal import Refused
from coordinatord.connections import NoAnswer, UnfitAnswer
from coordinatord.metrics import store_requests
from coordinatord.pins.exchange import SMALL, Answered, Exchange
from coordinatord.pins.payload import Payload
from coordinatord.pins.signing import Signer
from coordinatord.trouble import Retryable

T = TypeVar("T")

_NOTHING: Final = hashlib.sha256().digest()
_FIRST_WAIT: Final = 0.1  # seconds, at most; the next are twice as long
_LONGEST_WAIT: Final = 2.0
_LONGEST_ANSWER: Final = 1 << 20  # to content that was put
_LONGEST_CONTENT: Final = 32 << 20  # that is read whole: a container that a request carried has up to 15 MiB


class StoreRequests:
    """One bucket, addressed by path."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        bucket_url: str,
        signer: Signer,
        attempts: int = 3,
        exchange: Exchange | None = None,
    ) -> None:
        """With `exchange`, small requests go through that instead of the client."""
        self._client = client
        self._exchange = exchange
        self._root = bucket_url
        self._signer = signer
        self._attempts = attempts

    async def send(
        self, operation: str, method: str, key: str, *, query: str = "", payload: Payload | None = None
    ) -> Answered:
        """The answer, whole; it is a 2xx. `operation` is the metric's label."""
        url = f"{self._root}/{quote(key, safe='/')}{'?' + query if query else ''}"
        content = payload if payload is not None else Payload()
        return await self._insist(lambda: self._once(operation, method, url, content))

    async def _once(self, operation: str, method: str, url: str, payload: Payload) -> Answered:
        # The length is said ahead, so that pieces are not sent in chunks of their own, which S3 does not take.
        headers = {**self._signer.headers(method, url, payload.sha256), "content-length": str(payload.size)}
        started = time.perf_counter()
        outcome = "unavailable"
        try:
            answered = await self._answer(method, url, headers, payload)
            trouble = _trouble(answered.status, method, url)
            outcome = "ok" if trouble is None else str(trouble.code)
        except UnfitAnswer as unfit:
            outcome = "store_rejected"
            raise rejected(str(unfit)) from unfit
        except (httpx.HTTPError, NoAnswer) as cause:
            raise unavailable(type(cause).__name__) from cause
        finally:
            store_requests.labels(operation, outcome).observe(time.perf_counter() - started)
        if trouble is not None:
            raise trouble
        return answered

    async def _answer(self, method: str, url: str, headers: Mapping[str, str], payload: Payload) -> Answered:
        if self._exchange is not None and payload.size <= SMALL:
            return await self._exchange(method, url, headers, b"".join(payload.pieces))
        asked = {**headers, **IDENTITY}
        longest = _LONGEST_CONTENT if method == "GET" else _LONGEST_ANSWER
        async with self._client.stream(method, url, headers=asked, content=payload.stream()) as response:
            _require_plain(response)
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > longest:
                    raise rejected(f"its answer is longer than {longest} bytes")
            return Answered(response.status_code, response.headers, bytes(body))

    @asynccontextmanager
    async def stream(
        self, operation: str, key: str, *, first: int = 0, last: int | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The object, or its bytes from `first` to `last` inclusive, unread. Retried until the answer's head is
        there; what breaks while it is read is told as the same trouble."""
        url = f"{self._root}/{quote(key, safe='/')}"
        wanted = {} if first == 0 and last is None else {"range": f"bytes={first}-{'' if last is None else last}"}
        async with AsyncExitStack() as stack:
            response = await self._insist(lambda: self._opened(operation, url, wanted, stack))
            try:
                yield response
            except httpx.HTTPError as cause:
                raise unavailable(type(cause).__name__) from cause

    async def _opened(
        self, operation: str, url: str, wanted: Mapping[str, str], stack: AsyncExitStack
    ) -> httpx.Response:
        headers = {**self._signer.headers("GET", url, _NOTHING), **wanted, **IDENTITY}
        started = time.perf_counter()
        outcome = "unavailable"
        try:
            response = await stack.enter_async_context(self._client.stream("GET", url, headers=headers))
            trouble = _trouble(response.status_code, "GET", url)
            outcome = "ok" if trouble is None else str(trouble.code)
        except httpx.HTTPError as cause:
            raise unavailable(type(cause).__name__) from cause
        finally:
            store_requests.labels(operation, outcome).observe(time.perf_counter() - started)
        if trouble is not None:
            await response.aclose()
            raise trouble
        _require_plain(response)
        return response

    async def _insist(self, once: Callable[[], Awaitable[T]]) -> T:
        """By hand: tenacity would add a tenth to what a request costs, and a batch makes one for each line."""
        for attempt in range(self._attempts - 1):
            try:
                return await once()
            except Retryable as trouble:
                if not _may_help(trouble):
                    raise
            await anyio.sleep(random.uniform(0, min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)))  # noqa: S311 - keeps no secret
        return await once()


def unavailable(why: str) -> Retryable:
    return Retryable("pinner_unavailable", f"the object store did not answer ({why})", "store_unavailable")


def rejected(why: str) -> Retryable:
    return Retryable("pinner_unavailable", f"the object store refused ({why})", "store_rejected")


def missing(key: str) -> Retryable:
    return Retryable("pinner_unavailable", f"the object store does not hold {key}", "object_missing")


def _trouble(status: int, method: str, url: str) -> Retryable | None:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return None
    if status == HTTPStatus.NOT_FOUND and method in ("GET", "HEAD", "DELETE"):
        return missing(urlsplit(url).path)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return unavailable(f"HTTP {status}")
    return rejected(f"HTTP {status}")


def _require_plain(response: httpx.Response) -> None:
    """Content that the store encodes is not what was put there, and httpx would unfold an answer of any size."""
    try:
        require_plain(response.headers)
    except Refused as encoded:
        raise rejected(encoded.message) from None


def _may_help(trouble: Retryable) -> bool:
    return trouble.code == "store_unavailable"


def cid_header(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-amz-meta-cid")
