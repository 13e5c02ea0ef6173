"""One record per line of a batch: what it is a member by, and how it ended.

While a batch goes on, how a posted line stands is nowhere but in the outbox and in the index, so that a reorganised
block needs no care here. When the batch ends, each line's end is written down once; the files are made of that.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import attrs

from coordinatord.store.database import Connection

# How a line ended: `completed`, the code of its error, or null while it goes on. A job counts only as this batch's own
# post: one of the same id that was there before is why the chain refused the line.
OUTCOME: Final = (
    "case when l.result is not null then 'completed' when l.code is not null then l.code"
    " when r.state = 'refused' then coalesce(r.reason, 'unknown')"
    " when j.state = 2 then 'completed'"
    " when j.state = 3 then case j.ended_because when 2 then 'cancelled' when 3 then 'provider_fail'"
    " when 4 then 'reclaim' else 'expired' end end"
)
JOINED: Final = (
    "batch_lines l left join relays r on r.id = l.relay_id"
    " left join jobs j on r.state = 'mined' and j.job_id = l.job_id"
)


@attrs.frozen(slots=True)
class LineRecord:
    """Posted (`relay_id`) or skipped (`code`)."""

    line: int
    job_id: bytes | None
    relay_id: int | None
    code: str | None
    message: str | None
    late: bool = False  # skipped because the batch's window has ended


async def posted_among(connection: Connection, batch_id: str, job_ids: Sequence[bytes]) -> set[bytes]:
    """Which of these jobs earlier lines of the batch are. Looked up one by one: asked for as a set, all lines of the
    batch are read as long as statistics say that there are few, and each is compared with the whole set."""
    rows = await connection.fetch(
        "select j.job_id from unnest($2::bytea[]) as j(job_id) cross join lateral (select from batch_lines l"
        " where l.batch_id = $1 and l.job_id = j.job_id and l.relay_id is not null limit 1) l",
        batch_id,
        job_ids,
    )
    return {row["job_id"] for row in rows}


async def record(connection: Connection, batch_id: str, records: Iterable[LineRecord]) -> None:
    await connection.copy_records_to_table(
        "batch_lines",
        columns=("batch_id", "line", "job_id", "relay_id", "code", "message", "late"),
        records=[(batch_id, r.line, r.job_id, r.relay_id, r.code, r.message, r.late) for r in records],
    )


async def recorded(connection: Connection, batch_id: str) -> int:
    count: int = await connection.fetchval("select count(*) from batch_lines where batch_id = $1", batch_id)
    return count


async def end_dropped(connection: Connection, batch_id: str, code: str, message: str, *, late: bool) -> None:
    """Posts that were given up before they were signed, and are not to be tried again."""
    await connection.execute(
        "update batch_lines l set code = $2, message = $3, late = $4 from relays r"
        " where l.batch_id = $1 and l.code is null and r.id = l.relay_id and r.state = 'dropped'",
        batch_id,
        code,
        message,
        late,
    )


async def all_ended(connection: Connection, batch_id: str) -> bool:
    """By the index as it stands; false while it is being rebuilt."""
    ended: bool = await connection.fetchval(
        "select exists (select from index_position where not rebuilding) and not exists"
        f" (select from index_position p, {JOINED} where l.batch_id = $1 and {OUTCOME} is null)",
        batch_id,
    )
    return ended


async def any_queued(connection: Connection, batch_id: str) -> bool:
    """Whether a post of it may still be signed."""
    queued: bool = await connection.fetchval(
        "select exists (select from batch_lines l join relays r on r.id = l.relay_id"
        " where l.batch_id = $1 and r.state = 'queued')",
        batch_id,
    )
    return queued


async def write_ends(connection: Connection, batch_id: str) -> bool:
    """Write down how each line ended; one that goes on ends late, as expired. False while the index is being
    rebuilt."""
    written = await connection.fetchval(
        "with ends as (select l.line, o.outcome, j.result_cid, j.provider_id, j.rate_in::text as rate_in,"
        " j.rate_out::text as rate_out, j.completion_tok"
        f" from index_position p cross join {JOINED} cross join lateral (select {OUTCOME} as outcome) o"
        " where l.batch_id = $1 and not p.rebuilding and l.code is null and l.result is null),"
        " written as (update batch_lines l set"
        " code = case when e.outcome is distinct from 'completed' then coalesce(e.outcome, 'expired') end,"
        " late = e.outcome is null,"
        " result = case when e.outcome = 'completed' then json_build_object('result_cid', e.result_cid,"
        " 'provider', e.provider_id, 'rate_in', e.rate_in, 'rate_out', e.rate_out,"
        " 'completion_tok', e.completion_tok)::text end"
        " from ends e where l.batch_id = $1 and l.line = e.line)"
        " select true from index_position where not rebuilding",
        batch_id,
    )
    return written is True


@attrs.frozen(slots=True)
class EndedLine:
    line: int
    job_id: bytes | None
    code: str | None
    message: str | None
    late: bool
    result: str | None


async def ended_lines(connection: Connection, batch_id: str, *, completed: bool) -> AsyncIterator[EndedLine]:
    """In the file's order, a few at a time; within a transaction."""
    query = (
        "select line, job_id, code, message, late, result from batch_lines"
        f" where batch_id = $1 and result is {'not ' if completed else ''}null order by line"
    )
    async for row in connection.cursor(query, batch_id, prefetch=500):
        yield EndedLine(*row)


async def drop_finished(connection: Connection, older_than_seconds: int, failed_seconds: int, limit: int) -> int:
    """Drop batches whose files have gone, with all of their records; how many. Those without a result are kept for
    `failed_seconds`."""
    dropped: list[str] = await connection.fetchval(
        "select coalesce(array_agg(b.id), '{}') from (select id from batches b"
        " where coalesce(completed_at, failed_at, expired_at, cancelled_at)"
        " < clock_timestamp() - interval '1 second'"
        " * case when completed > 0 then $1::bigint else least($1, $2::bigint) end limit $3) b",
        older_than_seconds,
        failed_seconds,
        limit,
    )
    for table, column in (("batch_lines", "batch_id"), ("batch_work", "batch_id"), ("batches", "id")):
        await connection.execute(f"delete from {table} where {column} = any($1::text[])", dropped)
    return len(dropped)
