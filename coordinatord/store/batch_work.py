"""The workers' side of batches: which one is due, and how far it is. A row stays locked while a worker moves it."""

import attrs

from coordinatord.store.database import Connection


@attrs.frozen(slots=True)
class Work:
    """A batch to be moved, with what that takes. `ends_as` is set once every line's end is written down."""

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


async def take(connection: Connection) -> Work | None:
    """The batch that has waited longest, locked until the transaction ends; those that others hold are passed by."""
    batch_id = await connection.fetchval(
        "select batch_id from batch_work where due_at <= clock_timestamp() order by due_at limit 1"
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
    return Work(*row)


async def seconds_to_next(connection: Connection) -> float | None:
    """Until a batch becomes due that is not; what is due already is in somebody's hands."""
    seconds: float | None = await connection.fetchval(
        "select extract(epoch from min(due_at) - clock_timestamp())::float8 from batch_work"
        " where due_at > clock_timestamp()"
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
