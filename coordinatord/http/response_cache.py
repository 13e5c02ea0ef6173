"""Cache of responses that stay the same until the index moves to another block, with their ETags."""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, Protocol

import attrs

from coordinatord.http.responses import Response
from coordinatord.storage.database.snapshot_sql import Snapshot

MAX_CACHE_BYTES: Final = 32 << 20
MAX_ENTRY_BYTES: Final = 2 << 20
# Approximate memory of an entry, without its body.
ENTRY_OVERHEAD_BYTES: Final = 2048

_REVALIDATE: Final = (b"cache-control", b"no-cache")


class IndexPosition(Protocol):
    """Position of the index. `recent_value` returns the position if it was read a moment ago, otherwise None."""

    def recent_value(self) -> Snapshot | None: ...

    async def get(self) -> Snapshot: ...

    def invalidate(self) -> None: ...


@attrs.frozen(slots=True)
class CachedResponse:
    """Response and its ETag, which is also in the response's headers. `route` is the path of the route."""

    response: Response
    etag: bytes
    route: str

    def conditional_response(self, if_none_match: bytes | None) -> Response:
        """Return the response, or 304 for a client that already has this response."""
        if if_none_match is not None and matches_etag(if_none_match, self.etag):
            return not_modified_response(self.response)
        return self.response


def with_etag(response: Response, snapshot: Snapshot, target: bytes, route: str) -> CachedResponse:
    etag = etag_of(snapshot, target)
    headers = (*response.headers, (b"etag", etag), _REVALIDATE)
    return CachedResponse(Response(response.status, response.body, headers, snapshot), etag, route)


def etag_of(snapshot: Snapshot, target: bytes) -> bytes:
    """Return the ETag for the index's position and the request's target."""
    digest = blake2b(target + snapshot.block_hash, digest_size=12).hexdigest()
    return f'"{snapshot.block_number}-{digest}"'.encode()


def matches_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Return True if an If-None-Match header contains `etag`. Weak tags also match, as RFC 9110 requires."""
    tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in tags or etag in tags


def not_modified_response(response: Response) -> Response:
    headers = tuple((name, value) for name, value in response.headers if name != b"content-type")
    return attrs.evolve(response, status=304, body=b"", headers=headers)


class BlockCache:
    """Cache of responses by request target. An entry is valid while the index stays at the response's position. Least
    recently used entries are evicted."""

    def __init__(self, position: IndexPosition, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._position = position
        # Called after a successful write, so that the next read compares its cached response with a fresh position.
        self.forget_position = position.invalidate
        self._max_bytes = max_bytes
        self._total_bytes = 0
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()

    async def get(self, target: bytes) -> CachedResponse | None:
        cached = self._entries.get(target)
        if cached is None:
            return None
        if cached.response.snapshot != (self._position.recent_value() or await self._position.get()):
            self._remove_entry(target)
            return None
        # Another request may have evicted the entry during the await.
        if target in self._entries:
            self._entries.move_to_end(target)
        return cached

    def put(self, target: bytes, cached: CachedResponse) -> None:
        if len(cached.response.body) > MAX_ENTRY_BYTES:
            return
        self._remove_entry(target)
        self._entries[target] = cached
        self._total_bytes += len(cached.response.body) + ENTRY_OVERHEAD_BYTES
        while self._total_bytes > self._max_bytes:
            _, evicted = self._entries.popitem(last=False)
            self._total_bytes -= len(evicted.response.body) + ENTRY_OVERHEAD_BYTES

    def _remove_entry(self, target: bytes) -> None:
        evicted = self._entries.pop(target, None)
        if evicted is not None:
            self._total_bytes -= len(evicted.response.body) + ENTRY_OVERHEAD_BYTES
