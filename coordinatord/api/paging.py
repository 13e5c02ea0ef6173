"""Pages: cut before their body passes 4 MiB, and saying so."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from coordinatord.api.answers import Answer
from coordinatord.api.routes import Request
from coordinatord.store.snapshot import Snapshot

T = TypeVar("T")

LARGEST_PAGE: Final = 4 << 20
DEFAULT_LIMIT: Final = 100
_ENVELOPE: Final = 256  # what surrounds the rows
_encode: Final = msgspec.json.Encoder().encode


def page_of(request: Request) -> tuple[int, int]:
    """(limit, offset)."""
    return request.query.get("limit", DEFAULT_LIMIT), request.query.get("offset", 0)


def page(
    request: Request,
    snapshot: Snapshot,
    name: str,
    rows: Iterable[T],
    view: Callable[[T], msgspec.Struct],
    **extra: Any,
) -> Answer:
    """The rows under `name`, as many as fit; at least one, so that a reader who goes on gets on."""
    _, offset = page_of(request)
    encoded: list[bytes] = []
    size, cut = _ENVELOPE, False
    for row in rows:
        item = _encode(view(row))
        if encoded and size + len(item) + 1 > LARGEST_PAGE:
            cut = True
            break
        encoded.append(item)
        size += len(item) + 1
    listed = msgspec.Raw(b"[" + b",".join(encoded) + b"]")
    body = _encode({**extra, name: listed, "as_of_block": str(snapshot.block_number)})
    headers = [(b"content-type", b"application/json"), (b"x-svc-page-truncated", b"true" if cut else b"false")]
    if cut:
        headers.append((b"x-svc-next-offset", str(offset + len(encoded)).encode()))
    return Answer(200, body, tuple(headers), snapshot)
