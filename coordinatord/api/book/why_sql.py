"""Facts about an open job and the providers of its model, to explain why no provider claims the job.

The query reads the same views as polls and quotes. These views have a column for each condition. Every part of the
query uses an index and has a limit, so that the answer costs no more than a page of the job book.
"""

from collections import defaultdict
from typing import Final

import asyncpg
import attrs

from coordinatord.api.book.jobs_sql import JOB_COLUMNS, JobRow, job_row
from coordinatord.api.book.leases_sql import MAX_LEASED_JOBS_PER_POLL
from coordinatord.api.book.liveness_sql import LIVE_SINCE_SQL
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

_MAX_LISTED_POLLERS: Final = 100
_MAX_UNLISTED_POLLERS: Final = 10  # few, because anyone may register and poll
_MAX_ASKERS: Final = 100
_MAX_WINDOWS_PER_PROVIDER: Final = 16


@attrs.frozen(slots=True)
class OpenJob:
    """Open job. `leased_to` is 0 while the job is held back, and None for a free job. `seconds_left` is the time until
    the job's lease expires. `older_bids` is the number of older jobs of the model that are neither leased nor
    designated to a provider."""

    row: JobRow
    snapshot: Snapshot
    posted_log: int
    model_enabled: bool
    key_lost: bool
    leased_to: int | None
    seconds_left: int
    older_bids: int

    @property
    def amount(self) -> int:
        return int(self.row.amount)


@attrs.frozen(slots=True)
class AskedWindow:
    sla: int
    rate_in: int
    rate_out: int


@attrs.frozen(slots=True)
class ProviderFacts:
    """Conditions under which a provider leases the job. `seconds_since_poll` refers to the provider's last poll for the
    model, and `free_slots` is the number of free slots in that poll. `leased_jobs` counts jobs of the model that are
    leased to the provider, and `older_orders` counts older orders that are designated to the provider. `meets_ask` is
    True if the order meets an ask of the provider, or if the provider has no asks at all."""

    provider_id: int
    listed: bool
    allowed: bool
    capacity: int
    active_jobs: int
    live: bool
    seconds_since_poll: int | None
    free_slots: int
    leased_jobs: int
    older_orders: int
    meets_ask: bool
    asks: tuple[AskedWindow, ...]

    @property
    def free_capacity(self) -> int:
        return min(self.free_slots, MAX_LEASED_JOBS_PER_POLL, self.capacity - self.active_jobs) - self.leased_jobs


async def read_job(connection: Connection, job_id: bytes) -> tuple[Snapshot, OpenJob | None]:
    """Return the job, or None when it is not open."""
    rows = await connection.fetch(
        f"select page.*, {SNAPSHOT_COLUMNS} from index_position p left join lateral ("
        f" select {JOB_COLUMNS}, j.posted_log, m.enabled, j.key_lost, j.leased_to,"
        " (select ceil(extract(epoch from l.expires_at - clock_timestamp()))::bigint from leases l"
        "  where l.job_id = j.job_id) as left,"
        " (select count(*) from (select from open_jobs k where k.model_id = j.model_id and k.designated = 0"
        " and (k.posted_block, k.posted_log) < (j.posted_block, j.posted_log)"
        f" and k.is_free and not k.key_lost limit {MAX_LEASED_JOBS_PER_POLL}) b) as older_bids"
        " from open_jobs j left join models m on m.model_id = j.model_id where j.job_id = $1) page on true",
        job_id,
    )
    snapshot, row = snapshot_from_rows(rows), rows[0]
    if row["job_id"] is None:
        return snapshot, None
    return snapshot, OpenJob(
        job_row(row),
        snapshot,
        row["posted_log"],
        bool(row["enabled"]),
        row["key_lost"],
        row["leased_to"],
        max(1, row["left"] or 0),
        row["older_bids"],
    )


# `near`: providers that poll for the model or have an ask for it, and the job's designated provider and lease holder.
_SELECT_PROVIDERS: Final = f"""
    with near as (
        (select l.provider_id from liveness l join providers v using (provider_id)
            where l.model_id = $1 and v.listed order by l.seen_at desc limit {_MAX_LISTED_POLLERS})
        union (select l.provider_id from liveness l join providers v using (provider_id)
            where l.model_id = $1 and not v.listed order by l.seen_at desc limit {_MAX_UNLISTED_POLLERS})
        union (select a.provider_id from asks a join providers v using (provider_id)
            where a.model_id = $1 and v.listed group by a.provider_id
            order by min(a.rate_in * $5::bigint + a.rate_out * $6::bigint) limit {_MAX_ASKERS})
        union select v.provider_id from providers v where v.provider_id = any($7::bigint[]))
    select c.provider_id, c.listed, c.allowed, c.capacity, c.active_jobs,
        coalesce(l.seen_at > {LIVE_SINCE_SQL.format("$8")}, false) as live,
        extract(epoch from clock_timestamp() - l.seen_at)::bigint as seconds_since_poll,
        coalesce(l.free, 0) as free_slots,
        (select count(*) from leases x join open_jobs k on k.job_id = x.job_id
            where x.provider_id = c.provider_id and x.model_id = $1 and x.expires_at > statement_timestamp()
                and k.wanted and not k.key_lost) as leased_jobs,
        (select count(*) from (select from open_jobs k
            where k.designated = c.provider_id and k.designated > 0 and k.model_id = $1
                and (k.posted_block, k.posted_log) < ($9, $10) and k.wanted and k.is_free
            limit {MAX_LEASED_JOBS_PER_POLL}) d) as older_orders,
        meets_ask(c.provider_id, $1, $2, $3::numeric, $4::numeric) as meets_ask
    from near n join claimers c on c.provider_id = n.provider_id and c.model_id = $1
    left join liveness l on l.provider_id = c.provider_id and l.model_id = $1
"""
_SELECT_ASKS: Final = (
    "select n.id as provider_id, a.sla, a.rate_in::text as rate_in, a.rate_out::text as rate_out"
    " from unnest($1::bigint[]) as n(id) cross join lateral (select * from asks a"
    " where a.provider_id = n.id and a.model_id = $2"
    f" order by a.sla <> $3::bigint, a.sla limit {_MAX_WINDOWS_PER_PROVIDER}) a order by n.id, a.sla"
)


async def read_providers(connection: Connection, job: OpenJob, liveness_ms: int) -> list[ProviderFacts]:
    """Return facts about the providers that poll for the job's model, have an ask for it, or are the job's designated
    provider or lease holder."""
    row = job.row
    rows = await connection.fetch(
        _SELECT_PROVIDERS,
        row.model_id,
        row.sla_secs,
        int(row.rate_in),
        int(row.rate_out),
        row.units_in,
        row.units_out,
        [number for number in (row.designated, job.leased_to) if number],
        liveness_ms,
        row.posted_block,
        job.posted_log,
    )
    asks = await _read_asks(connection, [found["provider_id"] for found in rows], row.model_id, row.sla_secs)
    return [ProviderFacts(**found, asks=tuple(asks[found["provider_id"]])) for found in rows]


async def _read_asks(
    connection: Connection, provider_ids: list[int], model_id: int, sla_secs: int
) -> dict[int, list[AskedWindow]]:
    found: dict[int, list[AskedWindow]] = defaultdict(list)
    rows: list[asyncpg.Record] = await connection.fetch(_SELECT_ASKS, provider_ids, model_id, sla_secs)
    for row in rows:
        found[row["provider_id"]].append(AskedWindow(row["sla"], int(row["rate_in"]), int(row["rate_out"])))
    return found
