"""Work on batches: the rows that workers lock, and the changes that workers make to a batch."""

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import BATCH_MOVED, notify_outbox


async def set_errors(connection: Connection, batch_id: str, errors: str) -> None:
    await connection.execute("update batches set errors = $2 where id = $1", batch_id, errors)


async def fail_batch(connection: Connection, batch_id: str) -> None:
    """Fail a whole batch. Call this only before any of the batch's lines has been posted."""
    await connection.execute("update batches set failed_at = clock_timestamp() where id = $1", batch_id)
    await connection.execute("delete from batch_work where batch_id = $1", batch_id)
    await notify_outbox(connection, BATCH_MOVED, batch_id)


async def store_final_counts(connection: Connection, batch_id: str) -> None:
    """Store the final counts of a batch and how it ends, after all its lines have ended. A cancelled batch ends as
    cancelled, any other batch with a late line as expired, and the rest as completed."""
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


async def finish_batch(
    connection: Connection, batch_id: str, output_file_id: str | None, error_file_id: str | None
) -> None:
    """End a batch after its files were stored."""
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
    """Due batch, locked by a worker. `ends_as` is set once every line's outcome is stored."""

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
    completed: int | None  # set together with `ends_as`
    failed: int | None
    input_bytes: int | None  # None once the row of the input file has been deleted
    input_lines: int | None


async def lock_next_batch(connection: Connection) -> BatchWork | None:
    """Lock the batch that has waited longest until the transaction ends. Skip batches that other workers hold."""
    batch_id = await connection.fetchval(
        "select batch_id from batch_work where due_at <= statement_timestamp() order by due_at limit 1"
        " for update skip locked"
    )
    if batch_id is None:
        return None
    # Read the batch in a separate statement, which sees the changes that the previous worker committed.
    row = await connection.fetchrow(
        "select b.id, b.owner, b.endpoint, b.input_file_id, w.attempts, w.bytes_done, w.lines_done, w.expanded,"
        " b.cancelling_at is not null, b.expires_at <= clock_timestamp(), b.ends_as, b.completed, b.failed,"
        " f.bytes, f.lines"
        " from batch_work w join batches b on b.id = w.batch_id left join files f on f.id = b.input_file_id"
        " where w.batch_id = $1",
        batch_id,
    )
    return BatchWork(*row)


async def pause_batch(connection: Connection, batch_id: str, seconds: float, *, attempts: int = 0) -> None:
    """Make a batch due again after `seconds`, and store the number of failed attempts."""
    await connection.execute(
        "update batch_work set due_at = clock_timestamp() + $2 * interval '1 second', attempts = $3"
        " where batch_id = $1",
        batch_id,
        seconds,
        attempts,
    )


async def move_cursor(
    connection: Connection, batch_id: str, bytes_done: int, lines_done: int, *, expanded: bool
) -> None:
    """Move the cursor to the end of the recorded part of the file, and mark the batch as in progress."""
    await connection.execute(
        "update batches set in_progress_at = coalesce(in_progress_at, clock_timestamp()) where id = $1", batch_id
    )
    await connection.execute(
        "update batch_work set bytes_done = $2, lines_done = $3, expanded = $4, attempts = 0,"
        " due_at = clock_timestamp() where batch_id = $1",
        batch_id,
        bytes_done,
        lines_done,
        expanded,
    )
    await notify_outbox(connection, BATCH_MOVED, batch_id)
