"""Queries to create, find, list and cancel batches.

The counts of a running batch are computed from its jobs, by the statement that also reads the index's position. The
counts of an ended batch are stored in its row.
"""

from collections.abc import Sequence
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.api.batches.lines_sql import LINE_OUTCOME_SQL, LINES_WITH_JOBS
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import BATCH_MOVED, notify_outbox
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

Ending = Literal["completed", "expired", "cancelled"]


@attrs.frozen(slots=True)
class BatchRow:
    """Row of a batch. Times are Unix seconds. `total` counts recorded lines: all lines, once `expanded` is True."""

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
    total: int
    completed: int
    failed: int
    expanded: bool


_FIELDS: Final = [field.name for field in attrs.fields(BatchRow)]
_COUNTS: Final = ("total", "completed", "failed", "expanded")
_COLUMNS: Final = ", ".join(
    f"floor(extract(epoch from b.{name}))::bigint as {name}" if name.endswith("_at") else f"b.{name}"
    for name in _FIELDS
    if name not in _COUNTS
)


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
    lines: int = 0  # number of lines in the input file


def _batch_row(record: asyncpg.Record) -> BatchRow:
    """Return the batch of a record that starts with _COLUMNS and the counts."""
    return BatchRow(*record[: len(_FIELDS)])


# The counts of an ended batch are in its row. To count a running batch, the query reads each of its lines.
_JOIN_COUNTS: Final = (
    "left join lateral (select b.total, b.completed, b.failed, true as expanded where b.ends_as is not null or"
    " b.failed_at is not null"
    " union all select count(*)::integer, (count(*) filter (where o.outcome = 'completed'))::integer,"
    " (count(*) filter (where o.outcome <> 'completed'))::integer,"
    " coalesce((select w.expanded from batch_work w where w.batch_id = b.id), false)"
    f" from (select {LINE_OUTCOME_SQL} as outcome from {LINES_WITH_JOBS} where l.batch_id = b.id) o"
    " having b.ends_as is null and b.failed_at is null) c on true"
)


async def insert_batch(connection: Connection, new_batch: NewBatch) -> BatchRow | None:
    """Insert a batch, in a transaction. Return None if this owner has used the idempotency key before."""
    record = await connection.fetchrow(
        "insert into batches as b (id, owner, endpoint, input_file_id, completion_window, metadata, idempotency_key,"
        " request_hash, created_at, expires_at, lines)"
        " select $1, $2, $3, $4, $5, $6, $7, $8, t.now, t.now + $9 * interval '1 second', $10"
        " from (select clock_timestamp() as now) t"
        f" on conflict (owner, idempotency_key) do nothing returning {_COLUMNS}, 0, 0, 0, false",
        new_batch.id,
        new_batch.owner,
        new_batch.endpoint,
        new_batch.input_file_id,
        new_batch.completion_window,
        new_batch.metadata,
        new_batch.idempotency_key,
        new_batch.request_hash,
        new_batch.window_secs,
        new_batch.lines,
    )
    if record is None:
        return None
    await connection.execute("insert into batch_work (batch_id) values ($1)", new_batch.id)
    await notify_outbox(connection, BATCH_MOVED, new_batch.id)
    return _batch_row(record)


async def find_created(
    connection: Connection, batch_id: str, owner: bytes, idempotency_key: str | None
) -> BatchRow | None:
    """Return the batch that this owner created with this key or id. The query also works before the first block is
    indexed."""
    record = await connection.fetchrow(
        f"select {_COLUMNS}, c.* from batches b left join index_position p on true {_JOIN_COUNTS}"
        " where b.owner = $1 and (b.idempotency_key = $2 or b.id = $3)",
        owner,
        idempotency_key,
        batch_id,
    )
    return _batch_row(record) if record is not None else None


async def read_batch(connection: Connection, batch_id: str, owner: bytes) -> tuple[Snapshot, BatchRow | None]:
    records = await connection.fetch(
        f"select {_COLUMNS}, c.*, {SNAPSHOT_COLUMNS} from index_position p"
        f" left join batches b on b.id = $1 and b.owner = $2 {_JOIN_COUNTS}",
        batch_id,
        owner,
    )
    return snapshot_from_rows(records), next(iter(_batch_rows(records)), None)


async def read_page(
    connection: Connection, owner: bytes, older_than_position: int | None, limit: int
) -> tuple[Snapshot, list[BatchRow]]:
    """Read the batches before this position in the list, newest first. Without a position, begin with the newest."""
    records = await connection.fetch(
        f"select {_COLUMNS}, c.*, {SNAPSHOT_COLUMNS} from index_position p"
        " left join lateral (select * from batches where owner = $1 and ($2::bigint is null or place < $2)"
        f" order by place desc limit $3) b on true {_JOIN_COUNTS} order by b.place desc",
        owner,
        older_than_position,
        limit,
    )
    return snapshot_from_rows(records), _batch_rows(records)


def _batch_rows(records: Sequence[asyncpg.Record]) -> list[BatchRow]:
    return [_batch_row(record) for record in records if record["id"] is not None]


async def read_list_position(connection: Connection, batch_id: str, owner: bytes) -> int | None:
    """Return the position of a batch in the list of all batches, or None if the owner has no such batch."""
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select place from batches where id = $1 and owner = $2", batch_id, owner
    )


async def cancel_batch(connection: Connection, batch_id: str, owner: bytes) -> bool:
    """Cancel a batch. Return False when the batch has ended. A repeated cancel changes nothing."""
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
