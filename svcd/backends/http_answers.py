"""Classify the error responses of a provider's model servers, and read bodies with a size limit.

Only the short machine-readable code of an error is logged, because a server's message may quote the sealed payload.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import trio

from common.envelope import MAX_RESULT_VALUES
from common.refusal import Refused
from common.strict_json import may_have_more_values
from svc.wire.answers import UnacceptableAnswer, unencoded_pieces
from svcd.backends.attempts import TryAgain
from svcd.base.end_reasons import WorkFailed
from svcd.base.json_path import JsonPath
from svcd.payload.sealable import to_sealable

# Statuses of an invalid request. Any other permanent 4xx (401, 402, 404, …) is a fault of the provider's configuration.
_CLIENT_FAULT_STATUSES: Final = frozenset({400, 411, 413, 414, 415, 422, 431})
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 421, 423, 425, 429})
_PERMANENT_SERVER_ERRORS: Final = frozenset({501, 505})

_ERROR_CODE_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_ERROR_CODE_PATHS: Final = tuple(JsonPath.parse(path) for path in ("error.code", "error.type", "code", "type"))
_MAX_ERROR_BYTES: Final = 64 * 1024
_RESPONSE_END_TIMEOUT_S: Final = 1.0


async def read_error(response: httpx.Response) -> WorkFailed | TryAgain:
    """Return the exception to raise for an error response."""
    try:
        body: object = json.loads(await read_body(response, _MAX_ERROR_BYTES))
    except (ValueError, RecursionError, WorkFailed):
        body = None
    return error_for_status(response.status_code, response.headers, error_code(body))


def error_for_status(status: int, headers: Mapping[str, str], code: str) -> WorkFailed | TryAgain:
    detail = f"the backend answered {status} {code}".rstrip()
    if status in _RETRYABLE_STATUSES or (status >= 500 and status not in _PERMANENT_SERVER_ERRORS):
        return TryAgain(detail, read_retry_after(headers))
    return WorkFailed("backend_error", detail, status not in _CLIENT_FAULT_STATUSES)


def error_code(body: object) -> str:
    """Return the error's machine-readable code, or an empty string."""
    for path in _ERROR_CODE_PATHS:
        code = path.select_first(body)
        if isinstance(code, str | int) and _ERROR_CODE_PATTERN.fullmatch(str(code)):
            return str(code)
    return ""


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait before a retry, or None. A Retry-After date is relative to the `date` header."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
            return float(text) * scale
    at = _parse_date(headers.get("retry-after"))
    if at is None:
        return None
    now = _parse_date(headers.get("date"))
    return max(0.0, at - (time.time() if now is None else now))


def _parse_date(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def resolve_url(request_url: str, response_url: str) -> httpx.URL:
    """Return the absolute form of a URL in a response. `request_url` is the URL of the request."""
    try:
        url = httpx.URL(request_url).join(response_url)
    except httpx.InvalidURL:
        raise WorkFailed("backend_error", "the answer has a malformed URL", True) from None
    if url.scheme not in ("http", "https"):
        raise WorkFailed("backend_error", "the answer has a URL that is neither http nor https", True)
    return url


async def read_body(response: httpx.Response, max_length: int) -> bytes:
    """Return the whole body. Raise `WorkFailed` if the body is longer than `max_length`."""
    body = bytearray()

    def append_piece(piece: bytes) -> bool:
        check_length(len(body) + len(piece), max_length)
        body.extend(piece)
        return False

    await stream_body(response, append_piece)
    return bytes(body)


async def stream_body(response: httpx.Response, handle_piece: Callable[[bytes], bool]) -> None:
    """Pass the body in pieces to `handle_piece`, until the response ends or `handle_piece` returns True.

    After True, wait up to a second for the end of the response, so that the connection can be reused.
    """
    try:
        with trio.CancelScope() as reading:
            async with unencoded_pieces(response, math.inf, None) as pieces:
                async for piece in pieces:
                    if handle_piece(piece):
                        reading.deadline = min(reading.deadline, trio.current_time() + _RESPONSE_END_TIMEOUT_S)
    except UnacceptableAnswer as encoded:  # the server compresses its responses, which the provider must turn off
        raise WorkFailed("backend_error", str(encoded), True) from None


def check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise WorkFailed("backend_error", f"the answer is longer than {max_length} bytes", True)


def read_json_object(raw: bytes) -> dict[str, object]:
    """Return the JSON object. Raise `TryAgain` for other content, or `WorkFailed` for too many values to seal."""
    if may_have_more_values(raw, MAX_RESULT_VALUES):
        raise WorkFailed("backend_error", f"the answer has more than {MAX_RESULT_VALUES} JSON values", True)
    try:
        value: object = json.loads(raw)
    except (ValueError, RecursionError):
        raise TryAgain("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise TryAgain("the answer is not a JSON object")
    return value


def to_sealable_json(value: object) -> object:
    """Convert an answer to JSON that a sealed result may contain. Raise `WorkFailed` if the conversion fails."""
    try:
        return to_sealable(value)
    except Refused as refusal:
        raise WorkFailed("backend_error", f"the answer cannot be sealed: {refusal}", True) from None
