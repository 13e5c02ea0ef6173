"""Leases of open jobs to polling providers: at most one live lease per job.

One statement per step, inside one transaction per poll; a lapsed lease is overwritten by the next poll that takes
the job, so nothing has to clean up for polls to go on.
"""

from coordinatord.store.database import Connection
from coordinatord.store.jobs import JOB_COLUMNS, JobFilter, JobRow, conditions_of, job_row
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of


async def lock_provider(connection: Connection, provider_id: int) -> None:
    """Polls of one provider take turns: two at once would both count the same leases and together take too many."""
    await connection.execute("select pg_advisory_xact_lock(hashtextextended('poll ' || $1::text, 0))", str(provider_id))


async def take(
    connection: Connection,
    wanted: JobFilter,
    *,
    provider_id: int,
    model_id: int,
    free: int,
    lease_ms: int,
    custody: int | None,
) -> None:
    """Lease the oldest matching jobs that nobody holds, until `free` are held (earlier leases count).

    `custody`: open bids that were posted at or before this block are left out.
    """
    conditions, values = conditions_of(wanted)
    if custody is not None:
        values.append(custody)
        conditions += _opens_since(f"${len(values)}")
    n = len(values)
    values += [provider_id, free, lease_ms, model_id]
    provider, slots, length, model = (f"${n + k}" for k in range(1, 5))
    await connection.execute(
        "with held as (select count(*) as held from leases l join jobs j using (job_id) cross join index_position p"
        f" where l.provider_id = {provider} and l.model_id = {model} and l.expires_at > clock_timestamp()"
        " and j.state = 0 and j.expires_at >= p.block_time),"
        " free as (select j.job_id from jobs j cross join index_position p"
        f" where {conditions} and j.designated in (0, {provider})"
        " and not exists (select 1 from leases l where l.job_id = j.job_id and l.expires_at > clock_timestamp())"
        " order by j.posted_block, j.posted_log"
        f" limit greatest(0, {slots}::bigint - (select held from held)))"
        " insert into leases (job_id, provider_id, model_id, expires_at)"
        f" select job_id, {provider}, {model}, clock_timestamp() + {length} * interval '1 millisecond' from free"
        " on conflict (job_id) do update set provider_id = excluded.provider_id, expires_at = excluded.expires_at"
        " where leases.expires_at <= clock_timestamp()",
        *values,
    )


async def read_held(
    connection: Connection, provider_id: int, model_id: int, limit: int, offset: int, *, custody: int | None
) -> tuple[Snapshot, list[JobRow]]:
    """The open jobs that the provider holds, oldest first; `custody` as above."""
    values: list[object] = [provider_id, model_id, limit, offset]
    condition = ""
    if custody is not None:
        values.append(custody)
        condition = _opens_since("$5")
    rows = await connection.fetch(
        f"select page.*, {COLUMNS} from index_position p left join lateral (select {JOB_COLUMNS}, j.posted_log"
        " from leases l join jobs j using (job_id) where l.provider_id = $1 and l.model_id = $2"
        f" and l.expires_at > clock_timestamp() and j.state = 0 and j.expires_at >= p.block_time{condition}"
        " order by j.posted_block, j.posted_log limit $3 offset $4) page on true"
        " order by page.posted_block, page.posted_log",
        *values,
    )
    return snapshot_of(rows), [job_row(row) for row in rows if row["job_id"] is not None]


def _opens_since(block: str) -> str:
    """Only bids whose payload the escrow can still open: the designated ones are not sealed to it."""
    return f" and (j.designated <> 0 or j.posted_block > {block})"


async def drop_lapsed(connection: Connection) -> None:
    await connection.execute("delete from leases where expires_at < clock_timestamp()")
