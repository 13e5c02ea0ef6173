"""Answers that stay the same while the index stands still: their ETags, and those of lists kept for a block."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final

import attrs

from coordinatord.api.answers import Answer
from coordinatord.store.snapshot import Snapshot

MOST_BYTES: Final = 16 << 20
LARGEST_ENTRY: Final = 2 << 20


def etag_of(snapshot: Snapshot, target: bytes) -> bytes:
    """Where the index stood, and what was asked."""
    digest = blake2b(target + snapshot.block_hash, digest_size=12).hexdigest()
    return f'"{snapshot.block_number}-{digest}"'.encode()


def names_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Whether an If-None-Match header holds `etag`; weak ones count, as the header's rules say."""
    tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in tags or etag in tags


def not_modified(answer: Answer) -> Answer:
    kept = tuple((name, value) for name, value in answer.headers if name != b"content-type")
    return attrs.evolve(answer, status=304, body=b"", headers=kept)


class BlockCache:
    """Answers by target. An entry serves while the index stands where it stood; the least recently used go first."""

    def __init__(self, position: Callable[[], Awaitable[Snapshot]], most_bytes: int = MOST_BYTES) -> None:
        self._position = position
        self._most = most_bytes
        self._held = 0
        self._entries: OrderedDict[bytes, Answer] = OrderedDict()

    async def get(self, target: bytes) -> Answer | None:
        kept = self._entries.get(target)
        if kept is None:
            return None
        if kept.snapshot != await self._position():
            self._drop(target)
            return None
        if target in self._entries:  # another request may have dropped it meanwhile
            self._entries.move_to_end(target)
        return kept

    def put(self, target: bytes, answer: Answer) -> None:
        if answer.snapshot is None or len(answer.body) > LARGEST_ENTRY:
            return
        self._drop(target)
        self._entries[target] = answer
        self._held += len(answer.body)
        while self._held > self._most:
            _, gone = self._entries.popitem(last=False)
            self._held -= len(gone.body)

    def _drop(self, target: bytes) -> None:
        gone = self._entries.pop(target, None)
        if gone is not None:
            self._held -= len(gone.body)
