"""Batches as their owners see them: created, listed, cancelled.

The counts of a running batch come from its jobs, in the statement that reads the index's position. The counts of an
ended batch are stored in its row.
"""

from collections.abc import Sequence
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.api.batches.lines_sql import JOINED, OUTCOME
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import BATCH_MOVED, notify_outbox
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of

Ending = Literal["completed", "expired", "cancelled"]

_TIMES: Final = (
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_PLAIN: Final = (
    "id",
    "owner",
    "endpoint",
    "input_file_id",
    "completion_window",
    "metadata",
    "request_hash",
    "errors",
    "output_file_id",
    "error_file_id",
    "ends_as",
)
_COLUMNS: Final = ", ".join(
    [f"b.{name}" for name in _PLAIN] + [f"floor(extract(epoch from b.{name}))::bigint as {name}" for name in _TIMES]
)


@attrs.frozen(slots=True)
class Counts:
    """Lines of a batch. `total`: recorded so far, which are all once `expanded`."""

    total: int
    completed: int
    failed: int
    expanded: bool


@attrs.frozen(slots=True)
class BatchRow:
    """Row of a batch. Times are Unix seconds."""

    id: str
    owner: bytes
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str
    request_hash: bytes
    errors: str | None
    output_file_id: str | None
    error_file_id: str | None
    ends_as: Ending | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    counts: Counts


@attrs.frozen(slots=True)
class NewBatch:
    id: str
    owner: bytes
    endpoint: str
    input_file_id: str
    completion_window: str
    window_secs: int
    metadata: str
    idempotency_key: str | None
    request_hash: bytes
    lines: int = 0  # of its input file


def _row(record: asyncpg.Record, counts: Counts) -> BatchRow:
    values = {name: record[name] for name in (*_PLAIN, *_TIMES)}
    return BatchRow(**values, counts=counts)


# Counts of an ended batch are in its row. For a running batch, every line is read.
_COUNTED: Final = (
    "left join lateral (select b.total, b.completed, b.failed, true as expanded where b.ends_as is not null or"
    " b.failed_at is not null"
    " union all select count(*)::integer, (count(*) filter (where o.outcome = 'completed'))::integer,"
    " (count(*) filter (where o.outcome <> 'completed'))::integer,"
    " coalesce((select w.expanded from batch_work w where w.batch_id = b.id), false)"
    f" from (select {OUTCOME} as outcome from {JOINED} where l.batch_id = b.id) o"
    " having b.ends_as is null and b.failed_at is null) c on true"
)


async def create(connection: Connection, new: NewBatch) -> BatchRow | None:
    """Insert a batch, in a transaction. Return None when this owner used the idempotency key before."""
    record = await connection.fetchrow(
        "insert into batches as b (id, owner, endpoint, input_file_id, completion_window, metadata, idempotency_key,"
        " request_hash, created_at, expires_at, lines)"
        " select $1, $2, $3, $4, $5, $6, $7, $8, t.now, t.now + $9 * interval '1 second', $10"
        " from (select clock_timestamp() as now) t"
        f" on conflict (owner, idempotency_key) do nothing returning {_COLUMNS}",
        new.id,
        new.owner,
        new.endpoint,
        new.input_file_id,
        new.completion_window,
        new.metadata,
        new.idempotency_key,
        new.request_hash,
        new.window_secs,
        new.lines,
    )
    if record is None:
        return None
    await connection.execute("insert into batch_work (batch_id) values ($1)", new.id)
    await notify_outbox(connection, BATCH_MOVED, new.id)
    return _row(record, Counts(0, 0, 0, expanded=False))


async def find_created(
    connection: Connection, batch_id: str, owner: bytes, idempotency_key: str | None
) -> BatchRow | None:
    """Return the batch that this owner created with this key or under this id, at any position of the index."""
    record = await connection.fetchrow(
        f"select {_COLUMNS}, c.* from batches b left join index_position p on true {_COUNTED}"
        " where b.owner = $1 and (b.idempotency_key = $2 or b.id = $3)",
        owner,
        idempotency_key,
        batch_id,
    )
    return _row(record, _counts(record)) if record is not None else None


async def read(connection: Connection, batch_id: str, owner: bytes) -> tuple[Snapshot, BatchRow | None]:
    records = await connection.fetch(
        f"select {_COLUMNS}, c.*, {SNAPSHOT} from index_position p"
        f" left join batches b on b.id = $1 and b.owner = $2 {_COUNTED}",
        batch_id,
        owner,
    )
    return snapshot_of(records), next(iter(_rows(records)), None)


async def read_page(
    connection: Connection, owner: bytes, after: int | None, limit: int
) -> tuple[Snapshot, list[BatchRow]]:
    """Read batches behind the place `after`, newest first."""
    records = await connection.fetch(
        f"select {_COLUMNS}, c.*, {SNAPSHOT} from index_position p"
        " left join lateral (select * from batches where owner = $1 and ($2::bigint is null or place < $2)"
        f" order by place desc limit $3) b on true {_COUNTED} order by b.place desc",
        owner,
        after,
        limit,
    )
    return snapshot_of(records), _rows(records)


def _counts(record: asyncpg.Record) -> Counts:
    return Counts(record["total"], record["completed"], record["failed"], record["expanded"])


def _rows(records: Sequence[asyncpg.Record]) -> list[BatchRow]:
    return [_row(record, _counts(record)) for record in records if record["id"] is not None]


async def place_of(connection: Connection, batch_id: str, owner: bytes) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select place from batches where id = $1 and owner = $2", batch_id, owner
    )


async def cancel(connection: Connection, batch_id: str, owner: bytes) -> bool:
    """Cancel a batch. Return False when it has ended. Repeating a cancel changes nothing."""
    found = await connection.fetchval(
        "with cancelled as (update batches set cancelling_at = coalesce(cancelling_at, clock_timestamp())"
        " where id = $1 and owner = $2 and ends_as is null and failed_at is null returning true),"
        # A worker that holds the row makes the batch due again when it finishes.
        " due as (update batch_work set due_at = clock_timestamp() where batch_id in (select batch_id from batch_work"
        " where batch_id = $1 for update skip locked))"
        " select pg_notify('outbox_moved', 'batch ' || $1) is not null from cancelled",
        batch_id,
        owner,
    )
    return found is True
