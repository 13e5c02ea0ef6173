"""Leases of open jobs to polling providers: at most one live lease per job.

The next poll overwrites an expired lease. If a job's payment cannot be collected, the job is not leased for a while.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import attrs

from common.api.states import JobState
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import AMOUNT_SQL, JOB_COLUMNS, JobRow, job_row
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

MAX_LEASED_JOBS_PER_POLL: Final = 1000
_HELD_BACK_PROVIDER_ID: Final = 0  # provider id in the lease of a job that is held back
_MIN_HOLD_BACK: Final = timedelta(seconds=15)
_MAX_HOLD_BACK: Final = timedelta(minutes=30)
_MAX_HELD_BACK_PER_STATEMENT: Final = 10_000
_LOCK_IDLE_TIMEOUT: Final = "5s"


class PollKey(NamedTuple):
    """Provider, and the model that it polls for."""

    provider_id: int
    model_id: int


@attrs.frozen(slots=True)
class LeasedJob:
    row: JobRow
    is_new: bool  # leased by this poll


_MATCHES_FILTERS: Final = (
    "($5::numeric is null or j.rate_in >= $5) and ($6::numeric is null or j.rate_out >= $6)"
    " and ($7::bytea is null or j.owner = $7) and ($8::bigint is null or j.posted_block <= $8)"
)
_LEASE_JOBS: Final = f"""
    with held as (
        select j.*, false as is_new from leases l join open_jobs j on j.job_id = l.job_id
        where l.provider_id = $1 and l.model_id = $2 and l.expires_at > statement_timestamp() and j.wanted
            and not j.key_lost),
    missing as (
        select greatest(0, least($3::bigint, {MAX_LEASED_JOBS_PER_POLL}, coalesce(
            (select room from claimers where provider_id = $1 and model_id = $2 and may_claim), 0))
            - (select count(*) from held)) as jobs),
    bids as (
        select * from open_jobs j
        where j.model_id = $2 and j.designated = 0 and j.is_free and not j.key_lost and {_MATCHES_FILTERS}
        order by j.posted_block, j.posted_log limit (select jobs from missing)),
    orders as (
        select * from open_jobs j
        where j.designated = $1 and j.designated > 0 and j.model_id = $2
            and (j.is_free or j.leased_to = $1 and not j.wanted) and {_MATCHES_FILTERS}
        order by j.wanted desc, j.posted_block, j.posted_log limit (select jobs from missing)),
    chosen as (
        select *, true as is_new from (table bids union all table orders) j
        order by j.wanted desc, j.posted_block, j.posted_log limit (select jobs from missing)),
    leased as (
        insert into leases as l (job_id, provider_id, model_id, expires_at)
        select job_id, $1, $2, statement_timestamp() + $4 * interval '1 millisecond' from chosen order by job_id
        on conflict (job_id) do update
            set provider_id = excluded.provider_id, model_id = excluded.model_id, expires_at = excluded.expires_at
            where l.expires_at <= statement_timestamp() or l.provider_id = excluded.provider_id
        returning l.job_id)
    select page.*, {SNAPSHOT_COLUMNS}
    from index_position p left join lateral (
        select {JOB_COLUMNS}, j.posted_log, j.is_new
        from (select * from held j where {_MATCHES_FILTERS}
            union all select * from chosen where job_id in (select job_id from leased)) j) page on true
    order by page.posted_block, page.posted_log
"""


async def lease_jobs(
    connection: Connection, poller: PollKey, free_slots: int, job_filter: JobFilter, lease_ms: int
) -> tuple[Snapshot, list[LeasedJob]]:
    """Lease the oldest matching free jobs to the provider until the provider holds `free_slots` jobs. Return the
    matching jobs that the provider holds, oldest first. Orders that do not meet the provider's asks are leased last,
    and do not count towards `free_slots`. Call this in a transaction."""
    await lock_leases(connection, poller.model_id)
    rows = await connection.fetch(
        _LEASE_JOBS,
        *poller,
        free_slots,
        lease_ms,
        job_filter.min_rate_in,
        job_filter.min_rate_out,
        job_filter.owner,
        job_filter.posted_before,
    )
    return snapshot_from_rows(rows), [
        LeasedJob(job_row(row), row["is_new"]) for row in rows if row["job_id"] is not None
    ]


async def lock_leases(connection: Connection, model_id: int) -> None:
    """Lock the leasing of the model's jobs, so that the next statement sees all leases of other transactions. A process
    that hangs in the transaction loses the lock after _LOCK_IDLE_TIMEOUT.

    Also turn off sorting for the transaction, so that its statements read jobs in the order of an index and stop
    early."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('leases ' || $1::bigint, 0)),"
        f" set_config('idle_in_transaction_session_timeout', '{_LOCK_IDLE_TIMEOUT}', true),"
        " set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)",
        model_id,
    )


async def hold_back_jobs(connection: Connection, job_ids: Sequence[bytes]) -> None:
    """Exclude jobs from leases for a while, twice as long for each further call. No job is excluded forever, because a
    reorg may restore even a used authorisation."""
    await _hold_back_where(connection, "j.job_id = any($3)", job_ids)


async def hold_back_unaffordable_jobs(connection: Connection, owner: bytes, balance: int) -> None:
    """Hold back each open job of the owner that costs more than `balance`."""
    await _hold_back_where(connection, f"j.owner = $3 and {AMOUNT_SQL} > $4::numeric", owner, balance)


async def _hold_back_where(connection: Connection, condition: str, *values: object) -> None:
    await connection.execute(
        "insert into leases as l (job_id, provider_id, model_id, expires_at, unpaid)"
        f" select j.job_id, {_HELD_BACK_PROVIDER_ID}, j.model_id, clock_timestamp() + $1, 1 from jobs j"
        f" where j.state = {JobState.OPEN} and {condition}"
        f" order by j.job_id limit {_MAX_HELD_BACK_PER_STATEMENT} on conflict (job_id) do update"
        " set provider_id = excluded.provider_id, unpaid = l.unpaid + 1,"
        " expires_at = clock_timestamp() + least($1 * 2 ^ least(l.unpaid, 20), $2)"
        f" where l.provider_id <> {_HELD_BACK_PROVIDER_ID} or l.expires_at <= clock_timestamp()",
        _MIN_HOLD_BACK,
        _MAX_HOLD_BACK,
        *values,
    )


async def delete_expired_leases(connection: Connection) -> None:
    """Delete expired leases. Keep the lease of a job that was held back as long as the job is open, so that the next
    hold of the job lasts longer."""
    await connection.execute(
        "delete from leases l where l.expires_at < clock_timestamp() and (l.unpaid = 0"
        f" or not exists (select 1 from jobs j where j.job_id = l.job_id and j.state = {JobState.OPEN}))"
    )
