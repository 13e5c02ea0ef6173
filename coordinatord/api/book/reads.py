"""Batched reads of the index by key, shared by all requests of a process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs

from coordinatord.api.book import jobs_sql, registries_sql
from coordinatord.api.book.block_pace import BlockPace
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.registries_sql import ModelRow, ProviderRow
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead, with_snapshot
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.fresh_value import FreshValue
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.replicas import IndexSource, Replica, pooled_source, prepared_source
from coordinatord.storage.database.snapshot_sql import Snapshot, read_snapshot

K = TypeVar("K")
V = TypeVar("V")


@attrs.frozen(slots=True)
class IndexReads:
    """Readers of the index. Each reader by key has a separate connection."""

    jobs: BatchedReads[bytes, IndexRead[JobRow]]
    models: BatchedReads[str, IndexRead[ModelRow]]
    providers: BatchedReads[int, IndexRead[ProviderRow]]
    position: FreshValue[Snapshot]
    block_pace: BlockPace
    lists: IndexSource[Database]

    @classmethod
    def from_databases(cls, database: Database, replicas: Sequence[Replica] = ()) -> "IndexReads":
        # The position always comes from the primary, because the answers of standbys are compared with this position.
        position = FreshValue(database.prepared_connection(), read_snapshot)
        return cls(
            jobs=BatchedReads(prepared_source(database, replicas, position), _key_reader(jobs_sql.read_jobs_by_ids)),
            models=BatchedReads(
                prepared_source(database, replicas, position), _key_reader(registries_sql.read_models_by_names)
            ),
            providers=BatchedReads(
                prepared_source(database, replicas, position), _key_reader(registries_sql.read_providers_by_ids)
            ),
            position=position,
            block_pace=BlockPace(database),
            lists=pooled_source(database, replicas, position),
        )


def _key_reader(
    read: Callable[[PreparedConnection, list[K]], Awaitable[tuple[Snapshot, dict[K, V]]]],
) -> Callable[[IndexSource[PreparedConnection], list[K]], Awaitable[dict[K, IndexRead[V]]]]:
    """Return a reader for `BatchedReads`. It reads from a standby that has the same block as the primary, if any."""

    async def read_keys(source: IndexSource[PreparedConnection], keys: list[K]) -> tuple[Snapshot, dict[K, V]]:
        return await source.read(lambda connection: read(connection, keys))

    return with_snapshot(read_keys)


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
