"""Leases of open jobs to polling providers: at most one live lease per job.

The next poll overwrites an expired lease. If a job's payment cannot be collected, the job is not leased for a while.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import attrs

from common.api.states import JobState
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import AMOUNT, JOB_COLUMNS, JobRow, job_row
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of

MAX_LEASED_JOBS_PER_POLL: Final = 1000
_HELD_BACK: Final = 0  # provider id in the lease of a job that is held back
_MIN_HOLD: Final = timedelta(seconds=15)
_MAX_HOLD: Final = timedelta(minutes=30)
_MAX_HELD_BACK_PER_STATEMENT: Final = 10_000
_MAX_LOCK_IDLE: Final = "5s"


class PollKey(NamedTuple):
    """A provider's poll for a model."""

    provider_id: int
    model_id: int


@attrs.frozen(slots=True)
class LeaseDemand:
    """Poll for up to `free` jobs that match `filters`."""

    poller: PollKey
    free: int
    filters: JobFilter


@attrs.frozen(slots=True)
class LeasedJob:
    row: JobRow
    is_new: bool  # leased by this poll


_MATCHES: Final = (
    "($5::numeric is null or j.rate_in >= $5) and ($6::numeric is null or j.rate_out >= $6)"
    " and ($7::bytea is null or j.owner = $7) and ($8::bigint is null or j.posted_block <= $8)"
)
_LEASE: Final = f"""
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
        where j.model_id = $2 and j.designated = 0 and j.is_free and not j.key_lost and {_MATCHES}
        order by j.posted_block, j.posted_log limit (select jobs from missing)),
    orders as (
        select * from open_jobs j
        where j.designated = $1 and j.designated > 0 and j.model_id = $2
            and (j.is_free or j.leased_to = $1 and not j.wanted) and {_MATCHES}
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
    select page.*, {SNAPSHOT}
    from index_position p left join lateral (
        select {JOB_COLUMNS}, j.posted_log, j.is_new
        from (select * from held j where {_MATCHES}
            union all select * from chosen where job_id in (select job_id from leased)) j) page on true
    order by page.posted_block, page.posted_log
"""


async def lease(connection: Connection, demand: LeaseDemand, lease_ms: int) -> tuple[Snapshot, list[LeasedJob]]:
    """Lease the provider its oldest matching free jobs until it holds `demand.free`, and return the matching jobs that
    it holds, oldest first. Orders that do not meet its asks come last, and do not count as held. Call this in a
    transaction."""
    await lock_leases(connection, demand.poller.model_id)
    filters = demand.filters
    rows = await connection.fetch(
        _LEASE,
        *demand.poller,
        demand.free,
        lease_ms,
        filters.min_rate_in,
        filters.min_rate_out,
        filters.owner,
        filters.posted_before,
    )
    return snapshot_of(rows), [LeasedJob(job_row(row), row["is_new"]) for row in rows if row["job_id"] is not None]


async def lock_leases(connection: Connection, model_id: int) -> None:
    """Wait for other transactions that lease jobs of the model, so that the next statement sees all their leases. A
    process that hangs in the transaction loses the lock after _MAX_LOCK_IDLE.

    The next statement is planned without sorting, so that it reads jobs in the order of an index and stops early."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('leases ' || $1::bigint, 0)),"
        f" set_config('idle_in_transaction_session_timeout', '{_MAX_LOCK_IDLE}', true),"
        " set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)",
        model_id,
    )


async def hold_back(connection: Connection, job_ids: Sequence[bytes]) -> None:
    """Hold jobs back from all providers for a while, twice as long each time. A reorg may restore even a used
    authorisation, so no job is held back forever."""
    await _hold_back(connection, "j.job_id = any($3)", job_ids)


async def hold_back_beyond(connection: Connection, owner: bytes, balance: int) -> None:
    """Hold back all open jobs of the owner that cost more than its balance."""
    await _hold_back(connection, f"j.owner = $3 and {AMOUNT} > $4::numeric", owner, balance)


async def _hold_back(connection: Connection, which: str, *values: object) -> None:
    await connection.execute(
        "insert into leases as l (job_id, provider_id, model_id, expires_at, unpaid)"
        f" select j.job_id, {_HELD_BACK}, j.model_id, clock_timestamp() + $1, 1 from jobs j"
        f" where j.state = {JobState.OPEN} and {which}"
        f" order by j.job_id limit {_MAX_HELD_BACK_PER_STATEMENT} on conflict (job_id) do update"
        " set provider_id = excluded.provider_id, unpaid = l.unpaid + 1,"
        " expires_at = clock_timestamp() + least($1 * 2 ^ least(l.unpaid, 20), $2)"
        f" where l.provider_id <> {_HELD_BACK} or l.expires_at <= clock_timestamp()",
        _MIN_HOLD,
        _MAX_HOLD,
        *values,
    )


async def drop_expired(connection: Connection) -> None:
    """Delete expired leases. The lease of a job without payment stays while the job is open, so that its next hold is
    longer."""
    await connection.execute(
        "delete from leases l where (l.expires_at < clock_timestamp() and l.unpaid = 0) or (l.unpaid > 0"
        f" and not exists (select 1 from jobs j where j.job_id = l.job_id and j.state = {JobState.OPEN}))"
    )
