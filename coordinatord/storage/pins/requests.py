"""Send signed requests to the pin store, with retries and with an error code for each kind of failure.

`store_unavailable`: no answer, or a 5xx. `store_rejected`: the store refused the request or sent an unusable answer.
`object_missing`: the store does not hold the key.
"""

import hashlib
import hmac
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import attrs
from anyio import to_thread

from common.daemon.secrets import Secret
from coordinatord.base import metrics
from coordinatord.base.clock import read_http_date
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import HttpClient, HttpResponse, NoResponse, RejectedResponse
from coordinatord.base.thread_pipe import ThreadPipe

# Limit of content that is read whole. A container in a request has up to 15 MiB.
_MAX_CONTENT_BYTES: Final = 32 << 20
# Limit of the answer to an upload.
_MAX_ANSWER_BYTES: Final = 1 << 20
# Timeout of an answer that is read whole.
_ANSWER_TIMEOUT_S: Final = 90.0
# Larger content is hashed in a thread, so that the event loop is not blocked.
_INLINE_HASH_BYTES: Final = 1 << 16
_CLOCK_COMPARE_INTERVAL_S: Final = 60.0
# Clock difference up to which the local time is not corrected. Far below the 15 minutes after which stores reject
# signatures.
_CLOCK_TOLERANCE_S: Final = 60.0
# Maximum of the first random pause. The maximum doubles with each further pause.
_FIRST_RETRY_PAUSE_S: Final = 0.1
_MAX_RETRY_PAUSE_S: Final = 2.0


@attrs.frozen(slots=True)
class StoreResponse:
    """Response of the store with its whole body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Payload:
    """Content of one request: the pieces as they arrived, without a copy, and their common sha256.

    The signature needs the hash before the first byte is sent. Pieces are hashed as they arrive, large ones in a
    thread.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self._digest = hashlib.sha256()

    async def add(self, piece: bytes, thread: ThreadPipe | None = None) -> None:
        """Add a piece. With a `thread`, the hash is complete only after the thread is idle."""
        self.pieces.append(piece)
        self.size += len(piece)
        if thread is not None:
            await thread.queue_work(self._digest.update, piece)
        elif len(piece) > _INLINE_HASH_BYTES:
            await to_thread.run_sync(self._digest.update, piece)
        else:
            self._digest.update(piece)

    @property
    def sha256(self) -> bytes:
        return self._digest.digest()


async def build_payload(*pieces: bytes) -> Payload:
    payload = Payload()
    for piece in pieces:
        await payload.add(piece)
    return payload


class StoreClock:
    """Local clock, corrected by the `Date` header of the store's answers, because the store rejects requests that are
    signed with a clock far from the store's clock."""

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        # Correction of the local clock. 0 while the difference is within _CLOCK_TOLERANCE_S.
        self._local_ahead_s = 0.0
        self._next_compare_at = 0.0

    def now(self) -> float:
        """Return Unix seconds, corrected."""
        return self._local() - self._local_ahead_s

    def compare_if_due(self, headers: Mapping[str, str]) -> None:
        """Compare the clocks once in `_CLOCK_COMPARE_INTERVAL_S`, and also when the local clock was set back."""
        now = self._local()
        if not self._next_compare_at - _CLOCK_COMPARE_INTERVAL_S <= now < self._next_compare_at:
            self._next_compare_at = now + _CLOCK_COMPARE_INTERVAL_S
            self.compare(headers)

    def compare(self, headers: Mapping[str, str]) -> bool:
        """Compare the clocks by an answer's date. Return True if the correction changed."""
        date = read_http_date(headers.get("date"))
        # A cached response has an old date.
        if date is None or "age" in headers:
            return False
        # The header has whole seconds, rounded down.
        ahead = self._local() - (date + 0.5)
        metrics.clock_ahead.labels("pin store").set(ahead)
        correction = ahead if abs(ahead) > _CLOCK_TOLERANCE_S else 0.0
        if abs(correction - self._local_ahead_s) <= _CLOCK_TOLERANCE_S:
            return False
        self._local_ahead_s = correction
        return True


_SIGNED_HEADERS: Final = "host;x-amz-content-sha256;x-amz-date"
# Default ports, which clients omit from the host header.
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class RequestSigner:
    """SigV4 signatures of S3 requests.

        signature  HMAC-SHA256(key, "AWS4-HMAC-SHA256" ⏎ time ⏎ scope ⏎ hex(sha256(request)))
        scope      date / region / s3 / aws4_request
        key        derived from the secret with one HMAC per part of the scope; valid for one day
        request    method ⏎ path ⏎ query, in order of names ⏎ signed headers ⏎ ⏎ their names ⏎ hex(sha256(content))

    botocore's signer takes ten times as long, and a batch signs a request for every line. Tests compare the signatures
    with botocore's.
    """

    def __init__(
        self, access_key: Secret, secret_key: Secret, region: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._access_key = access_key.reveal()
        self._secret_key = secret_key.reveal()
        self._region = region
        self.clock = StoreClock(clock)
        self._date, self._key = "", b""

    def headers(
        self, method: str, url: str, sha256: bytes, extra_headers: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """Return the headers that authorise this request for the next minutes.

        `sha256` is the hash of the content. Path and query of `url` must be percent-encoded, and every parameter must
        have its `=`. `extra_headers` are signed as well, and have names in lower case. S3 requires a signature for all
        headers that begin with `x-amz-`.
        """
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.clock.now()))
        parts, content = urlsplit(url), sha256.hex()
        host = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
        query = "&".join(sorted(parts.query.split("&")))
        named = {"host": host, "x-amz-content-sha256": content, "x-amz-date": at, **extra_headers}
        signed = ";".join(sorted(named)) if extra_headers else _SIGNED_HEADERS
        headers = "".join(f"{name}:{named[name]}\n" for name in signed.split(";"))
        request = f"{method}\n{parts.path}\n{query}\n{headers}\n{signed}\n{content}"
        scope = f"{at[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._signing_key(at[:8]), text).hex()
        credential = f"Credential={self._access_key}/{scope}"
        return {
            "x-amz-date": at,
            "x-amz-content-sha256": content,
            "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={signed}, Signature={signature}",
            **extra_headers,
        }

    def _signing_key(self, date: str) -> bytes:
        if self._date != date:
            key = _hmac(b"AWS4" + self._secret_key.encode(), date)
            self._date, self._key = date, _hmac(_hmac(_hmac(key, self._region), "s3"), "aws4_request")
        return self._key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


T = TypeVar("T")

_EMPTY_SHA256: Final = hashlib.sha256().digest()


class StoreRequests:
    """Sends requests to one bucket, which URLs name by path.

    `streams` opens separate connections for objects that clients read slowly, so that orders do not wait for them.
    """

    def __init__(
        self,
        http: HttpClient,
        bucket_url: str,
        signer: RequestSigner,
        attempts: int = 3,
        streams: HttpClient | None = None,
    ) -> None:
        self._http = http
        self._streams = streams if streams is not None else http
        self._root = bucket_url
        self._signer = signer
        self._attempts = attempts

    async def send(
        self,
        operation: str,
        method: str,
        key: str,
        *,
        query: str = "",
        payload: Payload | None = None,
        extra_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> StoreResponse:
        """Return the whole answer to a successful request. `operation` labels the metric. The names of
        `extra_headers` are in lower case."""
        url = f"{self._root}/{quote(key, safe='/')}{'?' + query if query else ''}"
        content = payload if payload is not None else Payload()
        return await retry_unavailable(
            self._attempts, lambda: self._send_once(operation, method, url, content, extra_headers)
        )

    def path(self, key: str) -> str:
        """Return the percent-encoded path of a key for the header `x-amz-copy-source`."""
        return f"{urlsplit(self._root).path}/{quote(key, safe='/')}"

    async def _send_once(
        self, operation: str, method: str, url: str, payload: Payload, extra_headers: Mapping[str, str]
    ) -> StoreResponse:
        # The length prevents chunked encoding, which S3 does not accept.
        headers = {
            **self._signer.headers(method, url, payload.sha256, extra_headers),
            "content-length": str(payload.size),
        }
        max_bytes = _MAX_CONTENT_BYTES if method == "GET" else _MAX_ANSWER_BYTES
        with observe_request(operation):
            async with self._http(method, url, headers, payload.pieces) as response:
                with anyio.fail_after(_ANSWER_TIMEOUT_S):
                    answered = StoreResponse(response.status, response.headers, await response.read(max_bytes))
            self._require_success(answered.status, answered.headers, method, url)
        return answered

    @asynccontextmanager
    async def stream(
        self, operation: str, key: str, *, first: int = 0, last: int | None = None
    ) -> AsyncIterator[HttpResponse]:
        """Open the object, or its bytes from `first` to `last` inclusive.

        Retry until the head of the answer has arrived. A failure while the block reads the body is raised as Retryable
        `store_unavailable`, and not retried.
        """
        url = f"{self._root}/{quote(key, safe='/')}"
        range_header = {} if first == 0 and last is None else {"range": f"bytes={first}-{'' if last is None else last}"}
        async with AsyncExitStack() as stack:
            response = await retry_unavailable(
                self._attempts, lambda: self._open_answer(operation, url, range_header, stack)
            )
            try:
                yield response
            except NoResponse as error:
                raise unavailable_error(str(error)) from error

    async def _open_answer(
        self, operation: str, url: str, range_header: Mapping[str, str], stack: AsyncExitStack
    ) -> HttpResponse:
        """Return an open response, which is closed together with `stack`."""
        headers = {**self._signer.headers("GET", url, _EMPTY_SHA256), **range_header}
        with observe_request(operation):
            async with AsyncExitStack() as opening:
                response = await opening.enter_async_context(self._streams("GET", url, headers))
                self._require_success(response.status, response.headers, "GET", url)
                response.require_unencoded()
                await stack.enter_async_context(opening.pop_all())
        return response

    def _require_success(self, status: int, headers: Mapping[str, str], method: str, url: str) -> None:
        """Raise Retryable for a failure. A rejection that reveals a wrong clock is retryable, because the next attempt
        uses the corrected time."""
        if HTTPStatus.OK <= status < HTTPStatus.BAD_REQUEST:
            self._signer.clock.compare_if_due(headers)
        elif self._signer.clock.compare(headers):
            raise unavailable_error(f"HTTP {status}, and the store's clock differs from this machine's")
        _require_success(status, method, url)


async def retry_unavailable(attempts: int, send: Callable[[], Awaitable[T]]) -> T:
    """Call `send` until it succeeds, up to `attempts` times.

    A plain loop, because tenacity adds a tenth to the cost of a request, and a batch sends one request per line.
    """
    for attempt in range(attempts - 1):
        try:
            return await send()
        except Retryable as error:
            if error.code != "store_unavailable":
                raise
        await anyio.sleep(random.uniform(0, min(_FIRST_RETRY_PAUSE_S * 2**attempt, _MAX_RETRY_PAUSE_S)))  # noqa: S311 - keeps no secret
    return await send()


@contextmanager
def observe_request(operation: str) -> Iterator[None]:
    """Record the duration of one request, and raise its failures as Retryable."""
    started = time.perf_counter()
    outcome = "unavailable"
    try:
        yield
        outcome = "ok"
    except Retryable as error:
        outcome = str(error.code)
        raise
    except RejectedResponse as error:
        outcome = "store_rejected"
        raise rejected_error(str(error)) from error
    except (NoResponse, TimeoutError) as error:
        raise unavailable_error(str(error) or type(error).__name__) from error
    finally:
        metrics.store_requests.labels(operation, outcome).observe(time.perf_counter() - started)


def unavailable_error(reason: str) -> Retryable:
    return Retryable("pinner_unavailable", f"the object store did not answer ({reason})", "store_unavailable")


def rejected_error(reason: str) -> Retryable:
    return Retryable(
        "pinner_unavailable",
        f"the object store refused the request or sent an unusable answer ({reason})",
        "store_rejected",
    )


def missing_error(key: str) -> Retryable:
    return Retryable("pinner_unavailable", f"the object store has no object {key}", "object_missing")


def cid_from_headers(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-amz-meta-cid")


def _require_success(status: int, method: str, url: str) -> None:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    if status == HTTPStatus.NOT_FOUND and method in ("GET", "HEAD", "DELETE"):
        raise missing_error(urlsplit(url).path)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise unavailable_error(f"HTTP {status}")
    raise rejected_error(f"HTTP {status}")
