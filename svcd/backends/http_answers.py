"""Classify the error answers of a provider's servers, and read bodies with a size limit.

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
from common.strict_json import has_more_values
from svc.wire.answers import UnfitAnswer, pieces_of
from svcd.backends.attempts import TryAgain
from svcd.base.end_reasons import WorkFailed
from svcd.base.json_path import JsonPath
from svcd.payload.sealable import sealable

# The request is invalid. Every other 4xx (401, 402, 404, …) points to the provider's configuration.
_CLIENT_FAULTS: Final = frozenset({400, 411, 413, 414, 415, 422, 431})
_MAY_PASS: Final = frozenset({408, 409, 421, 423, 425, 429})
_NEVER_PASS: Final = frozenset({501, 505})

_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_CODE_PLACES: Final = tuple(JsonPath.parse(path) for path in ("error.code", "error.type", "code", "type"))
_MAX_ERROR_BYTES: Final = 64 * 1024
_END_SECONDS: Final = 1.0


async def read_error(response: httpx.Response) -> WorkFailed | TryAgain:
    """Return the exception to raise for an error answer."""
    try:
        body: object = json.loads(await read_body(response, _MAX_ERROR_BYTES))
    except (ValueError, RecursionError, WorkFailed):
        body = None
    return judge(response.status_code, response.headers, error_code(body))


def judge(status: int, headers: Mapping[str, str], code: str) -> WorkFailed | TryAgain:
    detail = f"the backend answered {status} {code}".rstrip()
    if status in _MAY_PASS or (status >= 500 and status not in _NEVER_PASS):
        return TryAgain(detail, retry_after(headers))
    return WorkFailed("backend_error", detail, status not in _CLIENT_FAULTS)


def error_code(body: object) -> str:
    """Return the error's machine-readable code, or an empty string."""
    for place in _CODE_PLACES:
        code = place.first(body)
        if isinstance(code, str | int) and _CODE.fullmatch(str(code)):
            return str(code)
    return ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait. A date is compared with the answer's `date` header if it has one."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
            return float(text) * scale
    at = _date(headers.get("retry-after"))
    if at is None:
        return None
    now = _date(headers.get("date"))
    return max(0.0, at - (time.time() if now is None else now))


def _date(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def address_in(answer_to: str, named: str) -> httpx.URL:
    """Return the absolute form of an address in an answer. `answer_to` is the request's address."""
    try:
        url = httpx.URL(answer_to).join(named)
    except httpx.InvalidURL:
        raise WorkFailed("backend_error", "the answer has a malformed address", True) from None
    if url.scheme not in ("http", "https"):
        raise WorkFailed("backend_error", "the answer names an address that is neither http nor https", True)
    return url


async def read_body(response: httpx.Response, max_length: int) -> bytes:
    """Return the whole body. Raise `WorkFailed` if it is longer than `max_length`."""
    body = bytearray()

    def take(piece: bytes) -> bool:
        check_length(len(body) + len(piece), max_length)
        body.extend(piece)
        return False

    await read_answer(response, take)
    return bytes(body)


async def read_answer(response: httpx.Response, take: Callable[[bytes], bool]) -> None:
    """Pass the body's chunks to `take` until the answer ends or `take` returns True.

    In the latter case the answer gets another second to end, so that its connection can be reused.
    """
    try:
        with trio.CancelScope() as reading:
            async with pieces_of(response, math.inf, None) as pieces:
                async for piece in pieces:
                    if take(piece):
                        reading.deadline = min(reading.deadline, trio.current_time() + _END_SECONDS)
    except UnfitAnswer as encoded:  # the provider must turn off its server's encoding
        raise WorkFailed("backend_error", str(encoded), True) from None


def check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise WorkFailed("backend_error", f"the answer is longer than {max_length} bytes", True)


def read_object(raw: bytes) -> dict[str, object]:
    """Return the JSON object. Raise `TryAgain` for anything else, and `WorkFailed` for one too large to be sealed."""
    if has_more_values(raw, MAX_RESULT_VALUES):
        raise WorkFailed("backend_error", f"the answer has more than {MAX_RESULT_VALUES} JSON values", True)
    try:
        value: object = json.loads(raw)
    except (ValueError, RecursionError):
        raise TryAgain("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise TryAgain("the answer is not a JSON object")
    return value


def for_the_seal(value: object) -> object:
    """Return the value in the form that a sealed result allows."""
    try:
        return sealable(value)
    except Refused as refusal:
        raise WorkFailed("backend_error", f"the answer cannot be sealed: {refusal}", True) from None
