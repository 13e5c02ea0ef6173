"""Batched reads of the index by key, shared by all requests of a process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs

from coordinatord.api.book import jobs_sql, registries_sql
from coordinatord.api.book.block_pace import BlockPace
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.registries_sql import ModelRow, ProviderRow
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.fresh_value import FreshValue
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.replicas import IndexSource, Replica, pools, prepared
from coordinatord.storage.database.snapshot_sql import Snapshot, read_snapshot

K = TypeVar("K")
V = TypeVar("V")


@attrs.frozen(slots=True)
class IndexReads:
    """Readers of the index. Each reader by key has a separate connection."""

    job: BatchedReads[bytes, IndexRead[JobRow]]
    model: BatchedReads[str, IndexRead[ModelRow]]
    provider: BatchedReads[int, IndexRead[ProviderRow]]
    position: FreshValue[Snapshot]
    pace: BlockPace
    lists: IndexSource[Database]

    @classmethod
    def over(cls, database: Database, replicas: Sequence[Replica] = ()) -> "IndexReads":
        # The position always comes from the primary: a standby's answer is compared with it.
        position = FreshValue(database.prepared_connection(), read_snapshot)
        return cls(
            job=BatchedReads(prepared(database, replicas, position), _by_key(jobs_sql.read_by_ids)),
            model=BatchedReads(prepared(database, replicas, position), _by_key(registries_sql.read_by_names)),
            provider=BatchedReads(prepared(database, replicas, position), _by_key(registries_sql.read_by_ids)),
            position=position,
            pace=BlockPace(database),
            lists=pools(database, replicas, position),
        )


def _by_key(
    read: Callable[[PreparedConnection, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[IndexSource[PreparedConnection], list[K]], Awaitable[dict[K, IndexRead[V]]]]:
    """Return a reader that answers every key, all from one snapshot."""

    async def read_all(source: IndexSource[PreparedConnection], keys: list[K]) -> dict[K, IndexRead[V]]:
        snapshot, values = await source.read(lambda line: read(line, keys))
        return {key: IndexRead(snapshot, values.get(key)) for key in keys}

    return read_all


@attrs.frozen(slots=True)
class MarketWindows:
    """Completion windows that the market allows, once the index is ready."""

    index: IndexSource[Database]
    is_ready: Callable[[], Awaitable[bool]]

    async def read(self) -> tuple[int, ...] | None:
        """Return the windows in seconds, shortest first, or None while they are unknown."""
        if not await self.is_ready():
            return None
        try:
            _, windows = await self.index.read(registries_sql.read_windows)
        except Retryable:
            return None
        return windows
