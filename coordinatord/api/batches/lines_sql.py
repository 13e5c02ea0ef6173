"""Records of batch lines. A record has the line's job, post and outcome.

While a batch runs, the state of a posted line is only in the outbox and the index, so a reorg changes no records.
When the batch ends, each line's outcome is stored, and the output files are built from these outcomes.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import attrs

from common.api.states import LINE_CODE_BY_END, JobState
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

_LINE_CODE_BRANCHES: Final = " ".join(f"when {number} then '{name}'" for number, name in LINE_CODE_BY_END.items())
# A failover may lose the relay of a post but keep its batch, which then posts the line again. So if the database was
# replaced after the batch was created, and the chain refuses a post as a duplicate, the batch itself posted the job
# before the failover.
_IS_POSTED_BEFORE: Final = (
    "(r.state = 'refused' and r.reason = 'DuplicateJob' and (select b.created_at from batches b"
    " where b.id = l.batch_id) < (select since from server_epoch))"
)
# Outcome of a line: `completed`, the code of its error, or null while the line runs. A job counts only if this batch
# posted it. If a job with the same id existed before, the chain has refused the line.
LINE_OUTCOME_SQL: Final = (
    "case when l.result is not null then 'completed' when l.code is not null then l.code"
    " when r.state = 'refused' and j.job_id is null then coalesce(r.reason, 'unknown')"
    f" when j.state = {JobState.SETTLED} then 'completed'"
    f" when j.state = {JobState.CANCELLED} then case j.ended_because {_LINE_CODE_BRANCHES} end end"
)
LINES_WITH_JOBS: Final = (
    "batch_lines l left join relays r on r.id = l.relay_id"
    f" left join lateral (select * from jobs where job_id = l.job_id and (r.state = 'mined' or {_IS_POSTED_BEFORE})"
    " limit 1) j on true"  # the limit keeps the planner from reading all jobs
)


@attrs.frozen(slots=True)
class LineRecord:
    """Line that was posted (`relay_id`) or failed (`code`)."""

    line: int
    job_id: bytes | None
    relay_id: int | None
    code: str | None
    message: str | None
    late: bool = False  # failed because the batch's window ended


async def find_posted(connection: Connection, batch_id: str, job_ids: Sequence[bytes]) -> set[bytes]:
    """Return the jobs among `job_ids` that earlier lines of the batch posted. The query looks up each job on its own,
    because with a set and outdated statistics the planner would read all lines of the batch."""
    rows = await connection.fetch(
        "select j.job_id from unnest($2::bytea[]) as j(job_id) cross join lateral (select from batch_lines l"
        " where l.batch_id = $1 and l.job_id = j.job_id and l.relay_id is not null limit 1) l",
        batch_id,
        job_ids,
    )
    return {row["job_id"] for row in rows}


async def record_lines(connection: Connection, batch_id: str, records: Iterable[LineRecord]) -> None:
    await connection.copy_records_to_table(
        "batch_lines",
        columns=("batch_id", "line", "job_id", "relay_id", "code", "message", "late"),
        records=[(batch_id, r.line, r.job_id, r.relay_id, r.code, r.message, r.late) for r in records],
    )


async def count_recorded(connection: Connection, batch_id: str) -> int:
    count: int = await connection.fetchval("select count(*) from batch_lines where batch_id = $1", batch_id)
    return count


async def end_dropped_lines(connection: Connection, batch_id: str, code: str, message: str, *, late: bool) -> None:
    """End the lines of the batch whose posts were dropped before signing, so that no worker queues them again."""
    await connection.execute(
        "update batch_lines l set code = $2, message = $3, late = $4 from relays r"
        " where l.batch_id = $1 and l.code is null and r.id = l.relay_id and r.state = 'dropped'",
        batch_id,
        code,
        message,
        late,
    )


async def all_lines_ended(connection: Connection, batch_id: str) -> bool:
    """Return True if every line has ended according to the index. Return False while the index is being rebuilt."""
    ended: bool = await connection.fetchval(
        "select exists (select from index_position where not rebuilding) and not exists"
        f" (select from index_position p, {LINES_WITH_JOBS} where l.batch_id = $1 and {LINE_OUTCOME_SQL} is null)",
        batch_id,
    )
    return ended


async def any_post_queued(connection: Connection, batch_id: str) -> bool:
    """Return True when a post of the batch may still be signed."""
    queued: bool = await connection.fetchval(
        "select exists (select from batch_lines l join relays r on r.id = l.relay_id"
        " where l.batch_id = $1 and r.state = 'queued')",
        batch_id,
    )
    return queued


async def store_outcomes(connection: Connection, batch_id: str) -> bool:
    """Store the outcome of each line. Mark a line that has not ended as late and expired. While the index is being
    rebuilt, store nothing and return False."""
    written = await connection.fetchval(
        "with ends as (select l.line, o.outcome, j.result_cid, j.provider_id, j.rate_in::text as rate_in,"
        " j.rate_out::text as rate_out, j.completion_tok"
        f" from index_position p cross join {LINES_WITH_JOBS}"
        f" cross join lateral (select {LINE_OUTCOME_SQL} as outcome) o"
        " where l.batch_id = $1 and not p.rebuilding and l.code is null and l.result is null),"
        " written as (update batch_lines l set"
        " code = case when e.outcome is distinct from 'completed' then coalesce(e.outcome, 'expired') end,"
        " late = e.outcome is null,"
        " result = case when e.outcome = 'completed' then jsonb_build_object('result_cid', e.result_cid,"
        " 'provider', e.provider_id, 'rate_in', e.rate_in, 'rate_out', e.rate_out,"
        " 'completion_tok', e.completion_tok) end"
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


async def read_ended_lines(connection: Connection, batch_id: str, *, completed: bool) -> AsyncIterator[EndedLine]:
    """Read ended lines in the file's order, a few at a time, in a transaction."""
    query = (
        "select line, job_id, code, message, late, result from batch_lines"
        f" where batch_id = $1 and result is {'not ' if completed else ''}null order by line"
    )
    async for row in connection.cursor(query, batch_id, prefetch=500):
        yield EndedLine(*row)


# Must equal the expression of the database's indexes on ended batches.
_ENDED_AT: Final = "coalesce(completed_at, failed_at, expired_at, cancelled_at)"


async def delete_finished_batches(
    connection: Connection, older_than_seconds: int, failed_retention_s: int, limit: int
) -> int:
    """Delete batches that ended more than `older_than_seconds` ago, or `failed_retention_s` ago if no line completed.
    Also delete the records of their lines. Return the number of deleted batches."""
    dropped: list[str] = await connection.fetchval(
        "select coalesce(array_agg(b.id), '{}') from ("
        f" (select id from batches where completed > 0 and {_ENDED_AT}"
        f" < statement_timestamp() - $1::bigint * interval '1 second' order by {_ENDED_AT} limit $3)"
        f" union all (select id from batches where completed = 0 and {_ENDED_AT}"
        f" < statement_timestamp() - least($1, $2::bigint) * interval '1 second' order by {_ENDED_AT} limit $3)) b",
        older_than_seconds,
        failed_retention_s,
        limit,
    )
    for table, column in (("batch_lines", "batch_id"), ("batch_work", "batch_id"), ("batches", "id")):
        await remove_due(connection, table, f"{column} = any($1::text[])", dropped)
    return len(dropped)
