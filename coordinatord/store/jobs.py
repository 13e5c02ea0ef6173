"""Jobs as the index holds them: by id, by page, and summed up for an owner.

An open job whose expiry is before the time of the indexed block reads as ended by expiry; the filter by state says
the same.
"""

from collections.abc import Sequence
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.store.database import Database
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of

StateName = Literal["Open", "Claimed", "Settled", "Cancelled"]

_EXPIRED: Final = "(j.state = 0 and j.expires_at < p.block_time)"
_STATES: Final[dict[str, str]] = {
    "Open": "(j.state = 0 and j.expires_at >= p.block_time)",
    "Claimed": "j.state = 1",
    "Settled": "j.state = 2",
    "Cancelled": f"(j.state = 3 or {_EXPIRED})",
}
# numeric columns as text: they are answered as decimal strings, and Decimal in between costs more than the row.
JOB_COLUMNS: Final = (
    "j.job_id, j.owner, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out,"
    " j.units_in, j.units_out, j.designated, j.expires_at, j.task_cid, j.posted_block,"
    f" case when {_EXPIRED} then 3 else j.state end as state,"
    f" case when {_EXPIRED} then 5 else j.ended_because end as ended_because,"
    " j.provider_id, j.claimed_at, j.completion_tok, j.result_cid,"
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


async def read_page(database: Database, wanted: JobFilter, limit: int, offset: int) -> tuple[Snapshot, list[JobRow]]:
    conditions, values = conditions_of(wanted)
    direction = "desc" if wanted.newest_first else "asc"
    order = f"order by j.posted_block {direction}, j.posted_log {direction}"
    values += [limit, offset]
    # What a row shows is made of the page's rows alone, not of all that an offset passes over.
    query = (
        f"select {JOB_COLUMNS}, {COLUMNS} from index_position p left join lateral (select j.* from jobs j"
        f" where {conditions} {order} limit ${len(values) - 1} offset ${len(values)}) j on true {order}"
    )
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(query, *values)
    return snapshot_of(rows), [job_row(row) for row in rows if row["job_id"] is not None]


def conditions_of(wanted: JobFilter) -> tuple[str, list[object]]:
    """The SQL of a filter (over `jobs j` and `index_position p`) and its parameters."""
    conditions, values = ["true"], list[object]()
    if wanted.state is not None:
        conditions.append(_STATES[wanted.state])
    for fragment, value in (
        ("j.model_id = ${}", wanted.model_id),
        ("j.provider_id = ${}", wanted.provider_id),
        ("j.owner = ${}", wanted.owner),
        ("j.rate_in >= ${}::numeric", wanted.min_rate_in),
        ("j.rate_out >= ${}::numeric", wanted.min_rate_out),
        ("j.posted_block <= ${}", wanted.posted_before),
    ):
        if value is not None:
            values.append(value)
            conditions.append(fragment.format(len(values)))
    return " and ".join(conditions), values


async def read_summary(database: Database, owner: bytes) -> tuple[Snapshot, list[OwnerSummary]]:
    """The total first, then one row per model. Every rate the chain takes is a whole number: all jobs are priced."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.*, {COLUMNS} from index_position p left join lateral (select model_id, count(*) as jobs,"
            " count(*) filter (where state = 2) as completed, coalesce(sum(cap), 0)::text as escrowed"
            " from jobs where owner = $1 group by grouping sets ((), (model_id))) s on true"
            " order by s.model_id nulls first",
            owner,
        )
    return snapshot_of(rows), [
        OwnerSummary(row["model_id"], row["jobs"], row["completed"], row["jobs"], row["escrowed"]) for row in rows
    ]
