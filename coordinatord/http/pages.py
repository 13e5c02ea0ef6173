"""Build pages of rows. A page is cut before its body exceeds 4 MiB, and a header reports the cut."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from common.api import limits
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request
from coordinatord.storage.database.snapshot_sql import Snapshot

T = TypeVar("T")
# Bytes reserved for the members of the body other than the rows.
_ENVELOPE_BYTES: Final = 256
_encode: Final = msgspec.json.Encoder().encode


def read_page_bounds(request: Request) -> tuple[int, int]:
    """Return the limit and the offset of the request."""
    return request.query.get("limit", limits.DEFAULT_PAGE_ROWS), request.query.get("offset", 0)


def page_response(
    request: Request,
    snapshot: Snapshot,
    name: str,
    rows: Iterable[T],
    view: Callable[[T], msgspec.Struct],
    **extra: Any,
) -> Response:
    """Return a response whose member `name` has as many rows as fit. The first row is always included, so that a
    client that reads page after page gets all rows."""
    _, offset = read_page_bounds(request)
    encoded: list[bytes] = []
    size, cut = _ENVELOPE_BYTES, False
    for row in rows:
        item = _encode(view(row))
        if encoded and size + len(item) + 1 > limits.MAX_PAGE_BYTES:
            cut = True
            break
        encoded.append(item)
        size += len(item) + 1
    listed = msgspec.Raw(b"[" + b",".join(encoded) + b"]")
    body = _encode({**extra, name: listed, "as_of_block": str(snapshot.block_number)})
    headers = [(b"content-type", b"application/json"), (b"x-svc-page-truncated", b"true" if cut else b"false")]
    if cut:
        headers.append((b"x-svc-next-offset", str(offset + len(encoded)).encode()))
    return Response(200, body, tuple(headers), snapshot)
