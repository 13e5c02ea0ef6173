"""Read lists page by page. A page may be shorter than requested, because the coordinator also limits its bytes."""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import httpx
import msgspec

from common.api import limits
from common.strict_json import DECODE_ERRORS
from svc.wire.transport import Transport, query_parameters, read_record, unexpected_answer

R = TypeVar("R")

_OFFSET_PATTERN: Final = re.compile(r"[0-9]{1,9}", re.ASCII)

MAX_PAGE_ROWS: Final = limits.MAX_PAGE_ROWS
# Limit of all pages together. The asks of a thousand providers have a quarter of this size.
MAX_LIST_BYTES: Final = 64 << 20


async def read_pages(
    transport: Transport,
    path: str,
    key: str,
    kind: type[R],
    *,
    limit: int | None,
    offset: int = 0,
    params: Mapping[str, object] | None = None,
    max_bytes: int = MAX_LIST_BYTES,
) -> list[R]:
    """Return up to `limit` entries from `offset` on, or all if `limit` is None."""
    entries: list[R] = []
    received = 0
    while limit is None or len(entries) < limit:
        size = MAX_PAGE_ROWS if limit is None else min(limit - len(entries), MAX_PAGE_ROWS)
        query = {**(params or {}), "limit": size, "offset": offset}
        response = await transport.send("GET", path, params=query_parameters(query))
        received += len(response.content)
        if received > max_bytes:
            raise unexpected_answer(response, f"the pages of the list have more than {max_bytes} bytes in total")
        page = _read_rows(response, key, kind)
        entries += page
        truncated = response.headers.get("x-svc-page-truncated", "").lower() == "true"
        if not truncated and len(page) < size:
            break
        offset = _next_offset(response, offset, offset + len(page))
    return entries


def _read_rows(response: httpx.Response, key: str, kind: type[R]) -> list[R]:
    rows = read_record(response, dict[str, msgspec.Raw]).get(key, msgspec.Raw(b"null"))
    try:
        return msgspec.json.decode(rows, type=list[kind], strict=False)  # type: ignore[valid-type] # `kind` is a variable
    except DECODE_ERRORS as malformed:
        raise unexpected_answer(response, f"the answer's {key} are malformed: {malformed}") from malformed


def _next_offset(response: httpx.Response, offset: int, default: int) -> int:
    """Return the offset of the next page. Raises ApiError if it is not above `offset`, or is too large."""
    next_offset = response.headers.get("x-svc-next-offset") or str(default)
    if not _OFFSET_PATTERN.fullmatch(next_offset) or int(next_offset) <= offset:
        raise unexpected_answer(
            response, f"the offset of the next page must be a number above {offset}, not {next_offset!r}"
        )
    if int(next_offset) > limits.MAX_OFFSET_ROWS:
        raise unexpected_answer(
            response, f"the list is too long: the next offset is {next_offset}, above {limits.MAX_OFFSET_ROWS}"
        )
    return int(next_offset)
