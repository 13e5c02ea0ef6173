"""Read lists that come in pages. A page is cut at the limit, or earlier when its body would grow too large."""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import httpx
import msgspec

from common.api import limits
from common.strict_json import UNREADABLE
from svc.wire.transport import Transport, given, read, unexpected

R = TypeVar("R")

_OFFSET: Final = re.compile(r"[0-9]{1,9}", re.ASCII)

MAX_PAGE_ROWS: Final = limits.MAX_PAGE_ROWS
# All pages together. The asks of a thousand providers take a quarter of it.
MAX_LIST_BYTES: Final = 64 << 20


async def paged(
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
        response = await transport.send("GET", path, params=given(query))
        received += len(response.content)
        if received > max_bytes:
            raise unexpected(response, f"the pages are longer than {max_bytes} bytes")
        page = _rows(response, key, kind)
        entries += page
        cut = response.headers.get("x-svc-page-truncated", "").lower() == "true"
        if not cut and len(page) < size:
            break
        offset = _next(response, offset, offset + len(page))
    return entries


def _rows(response: httpx.Response, key: str, kind: type[R]) -> list[R]:
    rows = read(response, dict[str, msgspec.Raw]).get(key, msgspec.Raw(b"null"))
    try:
        return msgspec.json.decode(rows, type=list[kind], strict=False)  # type: ignore[valid-type] # a variable
    except UNREADABLE as malformed:
        raise unexpected(response, f"the answer's {key} are malformed: {malformed}") from malformed


def _next(response: httpx.Response, at: int, counted: int) -> int:
    """Return the offset of the next page. Raise for an offset that does not increase, which would loop forever."""
    named = response.headers.get("x-svc-next-offset") or str(counted)
    if not _OFFSET.fullmatch(named) or int(named) <= at:
        raise unexpected(response, f"the page after offset {at} begins at {named!r}")
    if int(named) > limits.MAX_OFFSET_ROWS:
        raise unexpected(response, "the pages have no end")
    return int(named)
