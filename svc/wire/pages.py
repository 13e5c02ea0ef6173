"""Lists that come in pages: cut by the limit, or before it when a page's body would grow too large."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from svc.wire.transport import Transport, given, read

R = TypeVar("R")

LARGEST_PAGE: Final = 1000


async def paged(
    transport: Transport,
    path: str,
    key: str,
    kind: type[R],
    *,
    limit: int | None,
    offset: int = 0,
    params: Mapping[str, object] | None = None,
) -> list[R]:
    """Up to `limit` entries from `offset` on; all of them when `limit` is None."""
    entries: list[R] = []
    while limit is None or len(entries) < limit:
        size = LARGEST_PAGE if limit is None else min(limit - len(entries), LARGEST_PAGE)
        query = {**(params or {}), "limit": size, "offset": offset}
        response = await transport.send("GET", path, params=given(query))
        rows = read(response, dict[str, msgspec.Raw])[key]
        page: list[R] = msgspec.json.decode(rows, type=list[kind], strict=False)  # type: ignore[valid-type] # a variable
        entries += page
        cut = response.headers.get("x-svc-page-truncated", "").lower() == "true"
        if not cut and len(page) < size:
            break
        offset = int(response.headers.get("x-svc-next-offset") or offset + len(page))
    return entries
