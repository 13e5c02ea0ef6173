"""Jobs as the index holds them: by id, and summed up for an owner.

An open job whose expiry is before the time of the indexed block stands there as ended by expiry.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from coordinatord.store.database import Connection, Database
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of
from coordinatord.trouble import Retryable

# numeric columns as text: they are answered as decimal strings, and Decimal in between costs more than the row.
JOB_COLUMNS: Final = (
    "j.job_id, j.owner, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out,"
    " j.units_in, j.units_out, j.designated, j.expires_at, j.task_cid, j.posted_block,"
    " j.state, j.ended_because, j.provider_id, j.claimed_at, j.completion_tok, j.result_cid,"
    " (select name from models m where m.model_id = j.model_id) as model"
)


@attrs.frozen(slots=True)
class JobRow:
    job_id: bytes
    owner: bytes
    c: bytes
    model_id: int
    sla_secs: int
    rate_in: str
    rate_out: str
    units_in: int
    units_out: int
    designated: int
    expires_at: int
    task_cid: str
    posted_block: int
    state: int
    ended_because: int
    provider_id: int
    claimed_at: int
    completion_tok: int
    result_cid: str | None
    model: str | None


@attrs.frozen(slots=True, kw_only=True)
class JobFilter:
    state: str | None = None
    model_id: int | None = None
    provider_id: int | None = None
    owner: bytes | None = None
    min_rate_in: int | None = None
    min_rate_out: int | None = None
    posted_before: int | None = None
    newest_first: bool = False


@attrs.frozen(slots=True)
class OwnerSummary:
    """Of one model, or of all when `model_id` is None."""

    model_id: int | None
    jobs: int
    completed: int
    priced: int
    escrowed: str


def job_row(record: asyncpg.Record) -> JobRow:
    """Of a record whose first columns are JOB_COLUMNS."""
    return JobRow(*record[:20])


_BY_IDS: Final = f"select {JOB_COLUMNS}, {COLUMNS} from index_position p left join jobs j on j.job_id = any($1)"


async def read_by_ids(line: Line, job_ids: Sequence[bytes]) -> tuple[Snapshot, dict[bytes, JobRow]]:
    rows = await line.fetch(_BY_IDS, job_ids)
    return snapshot_of(rows), {row["job_id"]: job_row(row) for row in rows if row["job_id"] is not None}


async def read_summary(database: Database, owner: bytes) -> tuple[Snapshot, list[OwnerSummary]]:
    """The total first, then one row per model. Every rate the chain takes is a whole number: all jobs are priced."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.*, jobs_are_counted() as counted, {COLUMNS} from index_position p left join lateral ("
            "select model_id, sum(jobs)::bigint as jobs, sum(completed)::bigint as completed,"
            " coalesce(sum(escrowed), 0)::text as escrowed"
            " from owner_sums where owner = $1 group by grouping sets ((), (model_id))) s on true"
            " order by s.model_id nulls first",
            owner,
        )
    snapshot = snapshot_of(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has yet to count its jobs")
    return snapshot, [
        OwnerSummary(row["model_id"], row["jobs"] or 0, row["completed"] or 0, row["jobs"] or 0, row["escrowed"])
        for row in rows
    ]


async def read_posted_block(connection: Connection, job_id: bytes) -> int | None:
    """None while the index does not know the job."""
    block: int | None = await connection.fetchval("select posted_block from jobs where job_id = $1", job_id)
    return block


async def read_payment(database: Database, job_id: bytes) -> bytes | None:
    """The payment signature that the post carried; None while the index does not know the job."""
    async with database.connection() as connection:
        signature: bytes | None = await connection.fetchval("select pay_sig from jobs where job_id = $1", job_id)
    return signature
