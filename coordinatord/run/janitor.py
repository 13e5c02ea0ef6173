"""Delete expired rows and stored objects, and refresh the metrics of replication, storage and reliability.
docs/operators/limits.md, "Retention", lists the rules.

The process that holds the role `janitor` sweeps. A sweep may be interrupted anywhere, and the next sweep does the rest.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import anyio
import asyncpg
import attrs
import structlog

from coordinatord.api.batches import lines_sql
from coordinatord.api.book import leases_sql, liveness_sql
from coordinatord.api.book.reliability_sql import ReliabilityCounter
from coordinatord.api.files import files_sql
from coordinatord.api.files.files import FileStore
from coordinatord.api.sessions import sessions_sql
from coordinatord.api.tabs import tabs_sql
from coordinatord.api.webhooks import endpoints_sql
from coordinatord.base import metrics
from coordinatord.base.concurrency import single_error_task_group
from coordinatord.base.errors import Retryable
from coordinatord.chain.indexer import events_sql
from coordinatord.chain.relayer import endings_sql
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.replication_sql import Replication, read_replication
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import Containers

log = structlog.get_logger(__name__)

SWEEP_INTERVAL_S: Final = 60.0
# A file that a job names is marked as attached, and so kept, at most this long before it would expire. A failed sweep
# can therefore be repeated in time.
_ATTACH_BEFORE_EXPIRY_S: Final = 3 * SWEEP_INTERVAL_S
_MAX_LEASED_REMOVALS: Final = 200
_MAX_DELETED_ROWS: Final = 1_000
# Each removal waits for the store, and may hold a pooled connection while it waits.
_MAX_CONCURRENT_REMOVALS: Final = 4
_MAX_DELETED_BATCHES: Final = 20


@attrs.frozen(slots=True)
class Janitor:
    database: Database
    containers: Containers
    files: FileStore
    retention_seconds: int
    unsettled_retention_seconds: int = 172_800
    failed_batch_retention_seconds: int = 259_200
    relay_retention_seconds: int = 604_800
    endings_retention_seconds: int = 31_536_000
    reliability: ReliabilityCounter = attrs.field(factory=ReliabilityCounter)

    async def run(self) -> None:
        """Sweep whenever this process holds the role, until cancelled."""
        await hold_role(self.database, "janitor", self._sweep_repeatedly)

    async def _sweep_repeatedly(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        try:
            while True:
                _set_replication_metrics(await read_replication(connection))
                await self.sweep(connection)
                await anyio.sleep(SWEEP_INTERVAL_S)
        finally:  # another process may now hold the role and report these metrics
            metrics.database_standbys.clear()
            metrics.database_replay_lag.clear()

    async def sweep(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Delete everything that has expired, and refresh the metrics of stored bytes and reliability."""
        await sessions_sql.delete_expired_sessions(connection)
        await leases_sql.delete_expired_leases(connection)
        await liveness_sql.delete_old_polls(connection)
        await events_sql.drop_old_events(connection)
        await tabs_sql.delete_old_frames(connection)
        await endpoints_sql.delete_old_endpoints(connection)
        while (
            await endings_sql.drop_ended_relays(connection, self.relay_retention_seconds, _MAX_DELETED_ROWS)
            == _MAX_DELETED_ROWS
        ):
            pass
        while await endings_sql.drop_unused_transactions(connection, self.relay_retention_seconds, _MAX_DELETED_ROWS):
            pass
        while await lines_sql.delete_finished_batches(
            connection, self.retention_seconds, self.failed_batch_retention_seconds, _MAX_DELETED_BATCHES
        ):
            pass
        await endings_sql.drop_endings(connection, self.endings_retention_seconds)
        await traces_sql.drop_old_traces(connection)
        await objects_sql.shorten_lifetimes(
            connection, retention_seconds=self.retention_seconds, unsettled_seconds=self.unsettled_retention_seconds
        )
        await objects_sql.attach_or_extend_expired(connection, self.retention_seconds)
        while keys := await objects_sql.lease_expired_objects(connection, _MAX_LEASED_REMOVALS):
            await _remove_all({key: partial(self.containers.remove, key) for key in keys})
        await files_sql.attach_files_of_jobs(connection, self.retention_seconds, within_seconds=_ATTACH_BEFORE_EXPIRY_S)
        while expired := await files_sql.lease_expired_files(connection, _MAX_LEASED_REMOVALS):
            await _remove_all({file.id: partial(self.files.remove, file) for file in expired})
        await objects_sql.drop_empty_sums(connection)
        await objects_sql.mark_earners(connection)
        for kind, size in (await objects_sql.read_bytes_by_kind(connection)).items():
            metrics.stored_bytes.labels(kind).set(size)
        await self.reliability.refresh(connection)


def _set_replication_metrics(replication: Replication) -> None:
    metrics.database_standbys.labels("synchronous").set(replication.synchronous_count)
    metrics.database_standbys.labels("hidden").set(replication.hidden_count)
    asynchronous = replication.standby_count - replication.synchronous_count - replication.hidden_count
    metrics.database_standbys.labels("asynchronous").set(asynchronous)
    metrics.database_replay_lag.labels("primary").set(replication.lag_s)


async def _remove_all(removals: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Run the removals concurrently, because each waits for the store."""
    limiter = anyio.CapacityLimiter(_MAX_CONCURRENT_REMOVALS)
    async with single_error_task_group() as tasks:
        for key, removal in removals.items():
            tasks.start_soon(_run_removal, key, removal, limiter)


async def _run_removal(key: str, removal: Callable[[], Awaitable[None]], limiter: anyio.CapacityLimiter) -> None:
    try:
        async with limiter:
            await removal()
    except Retryable as error:
        # The lease on the object expires, and a later sweep retries the removal.
        log.warning("object not removed", key=key, reason=error.message)
