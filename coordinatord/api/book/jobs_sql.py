"""Jobs of the index by id.

An open job counts as expired if the indexed block is later than its expiry.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from common.api.states import EndedBecause, JobState
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

# Condition for expired jobs that the indexer has not marked yet, because very many jobs expired at the same time.
_EXPIRED_UNMARKED: Final = f"j.state = {JobState.OPEN} and j.expires_at < p.block_time"
AMOUNT_SQL: Final = "(j.cap + div(j.cap * j.fee_bps, 10000) + j.gas_fee)"  # payment that the claim of job `j` collects
# Columns of a `JobRow`, from `jobs j` and `index_position p`. Numbers that the API returns as strings are read as text,
# because decoding a Decimal costs more than the rest of the row.
JOB_COLUMNS: Final = (
    "j.job_id, j.owner, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out,"
    " j.units_in, j.units_out, j.designated, j.expires_at, j.task_cid, j.posted_block,"
    f" case when {_EXPIRED_UNMARKED} then {JobState.CANCELLED}::smallint else j.state end as state,"
    f" case when {_EXPIRED_UNMARKED} then {EndedBecause.EXPIRY}::smallint else j.ended_because end as ended_because,"
    " j.provider_id, j.claimed_at, j.completion_tok, j.result_cid,"
    " (select name from models m where m.model_id = j.model_id) as model,"
    f" case when {_EXPIRED_UNMARKED} or j.ended_because = {EndedBecause.EXPIRY} then j.expires_at else j.ended_at end"
    " as ended_at,"
    f" {AMOUNT_SQL}::text as amount,"
    f" case when j.state = {JobState.SETTLED} then j.cost::text end as provider_paid, j.fee_bps, j.gas_fee::text"
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
    ended_at: int | None
    amount: str
    provider_paid: str | None  # None unless the job is settled
    fee_bps: int
    gas_fee: str

    @property
    def reclaimable_at(self) -> int | None:
        """Second after which anyone may reclaim a claimed job. Until then, the provider can settle the job."""
        return self.claimed_at + self.sla_secs if self.state == JobState.CLAIMED else None


_JOB_FIELDS: Final = attrs.fields_dict(JobRow)


def job_row(record: asyncpg.Record) -> JobRow:
    """Return the job row of a record that starts with JOB_COLUMNS."""
    return JobRow(*record[: len(_JOB_FIELDS)])


_SELECT_JOBS_BY_IDS: Final = (
    f"select {JOB_COLUMNS}, {SNAPSHOT_COLUMNS} from index_position p left join jobs j on j.job_id = any($1)"
)


async def read_jobs_by_ids(
    connection: PreparedConnection, job_ids: Sequence[bytes]
) -> tuple[Snapshot, dict[bytes, JobRow]]:
    rows = await connection.fetch(_SELECT_JOBS_BY_IDS, job_ids)
    return snapshot_from_rows(rows), {row["job_id"]: job_row(row) for row in rows if row["job_id"] is not None}


async def read_posted_block(connection: Connection, job_id: bytes) -> int | None:
    """Return the block of the post, or None while the index does not know the job."""
    block: int | None = await connection.fetchval("select posted_block from jobs where job_id = $1", job_id)
    return block
