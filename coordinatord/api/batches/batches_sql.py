"""Batches as their owners see them: created, listed, cancelled; and the marks that workers set on them.

Counts of a batch that goes on come from its member jobs, in the same statement that says where the index stands; those
of one that ended were settled together with its files.
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
    """`total`: lines recorded so far. `expanded`: those are all."""

    total: int
    completed: int
    failed: int
    expanded: bool


@attrs.frozen(slots=True)
class BatchRow:
    """Times are Unix seconds."""

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


# Those of one that ended are in its row; for the others, every member is looked at.
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
    """Within a transaction. None when this owner used the idempotency key before."""
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
    """The batch that this owner created with this key, or under this id, wherever the index stands."""
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
    """The newest first, from behind the place `after` on."""
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
    """False when it ended meanwhile. A repetition changes nothing."""
    found = await connection.fetchval(
        "with cancelled as (update batches set cancelling_at = coalesce(cancelling_at, clock_timestamp())"
        " where id = $1 and owner = $2 and ends_as is null and failed_at is null returning true),"
        # A worker that holds the row looks at the batch again at once anyway.
        " due as (update batch_work set due_at = clock_timestamp() where batch_id in (select batch_id from batch_work"
        " where batch_id = $1 for update skip locked))"
        " select pg_notify('outbox_moved', 'batch ' || $1) is not null from cancelled",
        batch_id,
        owner,
    )
    return found is True


async def mark_in_progress(connection: Connection, batch_id: str) -> None:
    await connection.execute(
        "update batches set in_progress_at = coalesce(in_progress_at, clock_timestamp()) where id = $1", batch_id
    )


async def set_errors(connection: Connection, batch_id: str, errors: str) -> None:
    await connection.execute("update batches set errors = $2 where id = $1", batch_id, errors)


async def fail(connection: Connection, batch_id: str) -> None:
    """The input file as a whole is refused; nothing was posted."""
    await connection.execute("update batches set failed_at = clock_timestamp() where id = $1", batch_id)
    await connection.execute("delete from batch_work where batch_id = $1", batch_id)
    await notify_outbox(connection, BATCH_MOVED, batch_id)


async def settle_counts(connection: Connection, batch_id: str) -> None:
    """Every line has its end: from now on status and counts are the row's own. It has expired when a line
    ended late; a cancel that came before wins."""
    await connection.execute(
        "update batches b set finalizing_at = clock_timestamp(), total = c.total, completed = c.completed,"
        " failed = c.total - c.completed,"
        " ends_as = case when b.cancelling_at is not null then 'cancelled' when c.late then 'expired'"
        " else 'completed' end"
        " from (select count(*) as total, count(result) as completed, coalesce(bool_or(late), false) as late"
        " from batch_lines where batch_id = $1) c"
        " where b.id = $1",
        batch_id,
    )
    await notify_outbox(connection, BATCH_MOVED, batch_id)


async def settled_counts(connection: Connection, batch_id: str) -> tuple[int, int]:
    """(completed, failed)."""
    row = await connection.fetchrow("select completed, failed from batches where id = $1", batch_id)
    return row["completed"], row["failed"]


async def finish(connection: Connection, batch_id: str, output_file_id: str | None, error_file_id: str | None) -> None:
    """The files are stored: the batch is done, and no worker looks at it any more."""
    await connection.execute(
        "update batches b set output_file_id = $2, error_file_id = $3,"
        " completed_at = case when ends_as = 'completed' then t.now end,"
        " expired_at = case when ends_as = 'expired' then t.now end,"
        " cancelled_at = case when ends_as = 'cancelled' then t.now end"
        " from (select clock_timestamp() as now) t where b.id = $1",
        batch_id,
        output_file_id,
        error_file_id,
    )
    await connection.execute("delete from batch_work where batch_id = $1", batch_id)
    await notify_outbox(connection, BATCH_MOVED, batch_id)


@attrs.frozen(slots=True)
class BatchWork:
    """A batch that is due, with what moving it takes; its row stays locked while a worker moves it. `ends_as` is set
    once every line's end is written down."""

    batch_id: str
    owner: bytes
    endpoint: str
    input_file_id: str
    attempts: int
    bytes_done: int
    lines_done: int
    expanded: bool
    cancelling: bool
    expired: bool
    ends_as: str | None
    input_bytes: int | None  # of the input file, while its row is there
    input_lines: int | None


async def take(connection: Connection) -> BatchWork | None:
    """The batch that has waited longest, locked until the transaction ends; those that others hold are passed by."""
    batch_id = await connection.fetchval(
        "select batch_id from batch_work where due_at <= statement_timestamp() order by due_at limit 1"
        " for update skip locked"
    )
    if batch_id is None:
        return None
    # Read after the lock was taken: what the worker before us did is seen.
    row = await connection.fetchrow(
        "select b.id, b.owner, b.endpoint, b.input_file_id, w.attempts, w.bytes_done, w.lines_done, w.expanded,"
        " b.cancelling_at is not null, b.expires_at <= clock_timestamp(), b.ends_as, f.bytes, f.lines"
        " from batch_work w join batches b on b.id = w.batch_id left join files f on f.id = b.input_file_id"
        " where w.batch_id = $1",
        batch_id,
    )
    return BatchWork(*row)


async def seconds_to_next(connection: Connection) -> float | None:
    """Until a batch becomes due that is not; what is due already is in somebody's hands."""
    seconds: float | None = await connection.fetchval(
        "select extract(epoch from min(due_at) - clock_timestamp())::float8 from batch_work"
        " where due_at > statement_timestamp()"
    )
    return seconds


async def pause(connection: Connection, batch_id: str, seconds: float, *, attempts: int = 0) -> None:
    """Not due again before then."""
    await connection.execute(
        "update batch_work set due_at = clock_timestamp() + $2 * interval '1 second', attempts = $3"
        " where batch_id = $1",
        batch_id,
        seconds,
        attempts,
    )


async def move(connection: Connection, batch_id: str, bytes_done: int, lines_done: int, *, expanded: bool) -> None:
    """The file is recorded up to here."""
    await connection.execute(
        "update batch_work set bytes_done = $2, lines_done = $3, expanded = $4, attempts = 0,"
        " due_at = clock_timestamp() where batch_id = $1",
        batch_id,
        bytes_done,
        lines_done,
        expanded,
    )
    await notify_outbox(connection, BATCH_MOVED, batch_id)
