"""Response values, and the responses that several routes share.

Responses that only one group of routes uses are defined next to those routes.
"""

from typing import Final

import attrs
import msgspec

from common.api import error_bodies, limits
from common.api.error_bodies import ErrorType
from common.daemon.asgi import Send
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.storage.database.snapshot_sql import Snapshot

Headers = tuple[tuple[bytes, bytes], ...]

_encode: Final = msgspec.json.Encoder().encode
_JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_NOT_RETRYABLE: Final = (b"x-svc-retryable", b"false")
_RETRYABLE: Final = (b"x-svc-retryable", b"true")
_MALFORMED_MESSAGES: Final = {
    431: f"request head exceeds {limits.MAX_HEAD_BYTES // limits.KIB} KiB or {limits.MAX_HEADERS} headers",
    505: "HTTP version must be 1.0 or 1.1",
}


@attrs.frozen(slots=True)
class Response:
    """HTTP response. If it stays valid until the index moves to another block, `snapshot` is the index's position."""

    status: int
    body: bytes
    headers: Headers = (_JSON_CONTENT_TYPE,)
    snapshot: Snapshot | None = None


def ok(body: msgspec.Struct, *, status: int = 200, snapshot: Snapshot | None = None, headers: Headers = ()) -> Response:
    return Response(status, _encode(body), (_JSON_CONTENT_TYPE, *headers), snapshot)


def ok_no_store(body: msgspec.Struct) -> Response:
    """Return a response that no cache may store, because it contains a secret of the client."""
    return Response(200, _encode(body), (_JSON_CONTENT_TYPE, (b"cache-control", b"no-store")))


def not_retryable(status: int, body: msgspec.Struct) -> Response:
    """Return a response with a body that is not an error. The response is marked as not retryable, because a retry
    would get the same response."""
    return Response(status, _encode(body), (_JSON_CONTENT_TYPE, _NOT_RETRYABLE))


def retryable(status: int, body: msgspec.Struct) -> Response:
    return Response(status, _encode(body), (_JSON_CONTENT_TYPE, _RETRYABLE))


def error(
    status: int,
    kind: ErrorType,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retryable: bool = False,
    headers: Headers = (),
) -> Response:
    envelope = error_bodies.Error(error_bodies.ErrorBody(message=message, type=kind, param=param, code=code))
    return Response(
        status, _encode(envelope), (_JSON_CONTENT_TYPE, _RETRYABLE if retryable else _NOT_RETRYABLE, *headers)
    )


def refused(refusal: Refused) -> Response:
    return error(400, "invalid_request_error", refusal.message, param=refusal.param, code=refusal.code)


def retry_later(cause: Retryable) -> Response:
    status = 429 if cause.kind == "busy" else 503
    headers: Headers = ()
    if cause.retry_after is not None or cause.kind == "busy":
        headers = ((b"retry-after", str(cause.retry_after or 1).encode()),)
    return error(status, cause.kind, cause.message, code=cause.code, retryable=True, headers=headers)


def malformed_http(status: int) -> Response:
    """Return the response to bytes that are not a valid request. The server sends this response before a route
    is known."""
    return error(
        status, "invalid_request_error", _MALFORMED_MESSAGES.get(status, "malformed or ambiguous HTTP request")
    )


def internal_error() -> Response:
    return error(500, "internal_error", "the request failed unexpectedly; report its x-request-id to the operator")


def not_found(missing: NoSuchObject) -> Response:
    return error(404, "not_found", f"there is no such {missing.kind}")


def model_not_found(name: str) -> Response:
    """Return the error for an unknown model. The specification defines this error without `param` and without the
    header x-svc-retryable."""
    body = error_bodies.ModelNotFoundBody(f"there is no model {name!r}", "not_found", "model_not_found")
    return Response(404, _encode(error_bodies.ModelNotFound(body)))


def method_not_allowed(allowed: str) -> Response:
    message = f"this route accepts only the methods {allowed}"
    return error(405, "invalid_request_error", message, headers=((b"allow", allowed.encode()),))


def body_too_large(max_bytes: int) -> Response:
    message = f"the body is over this route's limit of {max_bytes} bytes"
    return error(413, "invalid_request_error", message, code="body_too_large")


def file_too_large(max_bytes: int) -> Response:
    message = f"the file is over the limit of {max_bytes} bytes"
    return error(413, "invalid_request_error", message, param="file", code="file_too_large")


def range_not_satisfiable(size: int) -> Response:
    headers = ((b"content-range", f"bytes */{size}".encode()),)
    return error(
        416, "invalid_request_error", f"the range lies outside of the file, which has {size} bytes", headers=headers
    )


def body_too_slow() -> Response:
    message = "the body did not arrive in time; send it faster, or in a smaller body"
    return error(408, "invalid_request_error", message, headers=((b"connection", b"close"),))


def invalid_session() -> Response:
    message = "the session token is missing, malformed or expired; open a session with GET /auth/nonce"
    return error(401, "authentication_error", message, code="invalid_session")


async def send_response(send: Send, response: Response, *, with_body: bool = True) -> None:
    """Send a response. For HEAD, `with_body=False` sends the headers of the GET response, including content-length."""
    headers = [*response.headers]
    if response.status not in {204, 304}:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body if with_body else b""})
