"""Facts about an open job and the providers that its model concerns, for the answer to why nobody claims it.

The conditions are those of `poll_jobs` (0001_schema.sql) and of `candidates_sql`, one by one: there they decide
together who is leased or named, here each is told apart. A test over random books holds that both come to the same.
Every part is read by an index and has a bound, so that the answer costs no more than a page of the job book.
"""

from collections import defaultdict
from typing import Final

import asyncpg
import attrs

from common.api.states import JobState
from coordinatord.api.book.book_sql import JOB_COLUMNS, job_row
from coordinatord.api.book.candidates_sql import LIVE_SINCE, MAY_RUN
from coordinatord.api.book.leases_sql import HeldJob, JobPlace
from coordinatord.api.book.registries_sql import CAPACITY
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of

MOST_PROVIDERS: Final = 50
_POLLERS: Final = 100  # listed ones, those that polled last
_STRANGERS: Final = 10  # pollers that are not listed: anybody may register and poll
_ASKERS: Final = 100
_MOST_AHEAD: Final = 1000  # as many as a poll is leased at most
_MOST_WINDOWS: Final = 16  # of one provider's asks for a model
_FREE: Final = "not exists (select 1 from leases l where l.job_id = k.job_id and l.expires_at > clock_timestamp())"


@attrs.frozen(slots=True)
class OpenJob:
    """A job and what is known of it as a whole. `leased_to` is 0 for one that is held back, None when it is free.

    `ahead`: open bids of the model that are free and were posted before it. `seconds_left`: of its lease."""

    job: HeldJob
    snapshot: Snapshot
    model_enabled: bool
    custody_lost: bool
    leased_to: int | None
    seconds_left: int
    ahead: int


@attrs.frozen(slots=True)
class AskedWindow:
    sla: int
    rate_in: int
    rate_out: int


@attrs.frozen(slots=True)
class ProviderFacts:
    """What leasing looks at. `seen`: seconds since its last poll for the model, None when none is known; `free`: what
    it said then; `held`: what it is leased of the model already; `ahead`: orders designated to it that come first;
    `wants`: its asks say that it wants the order, or it has none at all."""

    provider_id: int
    listed: bool
    allowed: bool
    capacity: int
    active_jobs: int
    live: bool
    seen: int | None
    free: int
    held: int
    ahead: int
    wants: bool
    asks: tuple[AskedWindow, ...]

    @property
    def room(self) -> int:
        return min(self.free, _MOST_AHEAD, self.capacity - self.active_jobs) - self.held


async def read_job(connection: Connection, job_id: bytes, custody: int | None) -> tuple[Snapshot, OpenJob | None]:
    """The job as a poll would find it; of one that is not open nothing but that. `custody` as for polls."""
    rows = await connection.fetch(
        f"select page.*, {SNAPSHOT} from index_position p left join lateral ("
        f" select {JOB_COLUMNS}, j.posted_log,"
        " coalesce((select m.enabled from models m where m.model_id = j.model_id), false) as enabled,"
        " x.provider_id as leased_to, ceil(extract(epoch from x.expires_at - clock_timestamp()))::bigint as left,"
        " (select count(*) from (select 1 from jobs k where k.model_id = j.model_id"
        f" and k.state = {JobState.OPEN} and k.designated = 0 and k.expires_at >= p.block_time"
        " and (k.posted_block, k.posted_log) < (j.posted_block, j.posted_log)"
        f" and ($2::bigint is null or k.posted_block > $2) and {_FREE} limit {_MOST_AHEAD}) b) as ahead"
        " from jobs j left join leases x on x.job_id = j.job_id and x.expires_at > clock_timestamp()"
        f" where j.job_id = $1 and j.state = {JobState.OPEN} and j.expires_at >= p.block_time) page on true",
        job_id,
        custody,
    )
    snapshot, row = snapshot_of(rows), rows[0]
    if row["job_id"] is None:
        return snapshot, None
    job = HeldJob(job_row(row), False, int(row["amount"]), JobPlace(row["posted_block"], row["posted_log"]))
    lost = custody is not None and row["designated"] == 0 and row["posted_block"] <= custody
    return snapshot, OpenJob(
        job, snapshot, row["enabled"], lost, row["leased_to"], max(1, row["left"] or 0), row["ahead"]
    )


# `near`: who polls for the model or asks for it, the listed ones first, as far as they are told of.
_PROVIDERS: Final = (
    "with near as ("
    "(select l.provider_id from liveness l join providers v using (provider_id)"
    f" where l.model_id = $1 and v.listed order by l.seen_at desc limit {_POLLERS})"
    " union (select l.provider_id from liveness l join providers v using (provider_id)"
    f" where l.model_id = $1 and not v.listed order by l.seen_at desc limit {_STRANGERS})"
    " union (select a.provider_id from asks a join providers v using (provider_id)"
    " where a.model_id = $1 and v.listed group by a.provider_id"
    f" order by min(a.rate_in * $5::bigint + a.rate_out * $6::bigint) limit {_ASKERS})"
    " union select v.provider_id from providers v where v.provider_id = any($7::bigint[]))"
    " select v.provider_id, v.listed,"
    f" {MAY_RUN.format(provider='v.provider_id', model='$1')} as allowed, {CAPACITY} as capacity, v.active_jobs,"
    f" coalesce(l.seen_at > {LIVE_SINCE.format('$8')}, false) as live,"
    " extract(epoch from clock_timestamp() - l.seen_at)::bigint as seen, coalesce(l.free, 0) as free,"
    " (select count(*) from leases x join jobs k on k.job_id = x.job_id"
    f" where x.provider_id = v.provider_id and x.model_id = $1 and x.expires_at > clock_timestamp()"
    f" and k.state = {JobState.OPEN} and k.expires_at >= $9"
    " and (k.designated <> 0 or $10::bigint is null or k.posted_block > $10)"
    " and (k.designated = 0 or meets_ask(k.designated, k.model_id, k.sla_secs, k.rate_in, k.rate_out))) as held,"
    " (select count(*) from (select 1 from jobs k where k.designated = v.provider_id and k.designated > 0"
    f" and k.model_id = $1 and k.state = {JobState.OPEN} and k.expires_at >= $9"
    " and (k.posted_block, k.posted_log) < ($11, $12)"
    f" and meets_ask(k.designated, k.model_id, k.sla_secs, k.rate_in, k.rate_out) and {_FREE}"
    f" limit {_MOST_AHEAD}) d) as ahead,"
    " meets_ask(v.provider_id, $1, $2, $3::numeric, $4::numeric) as wants"
    " from near n join providers v on v.provider_id = n.provider_id"
    " left join liveness l on l.provider_id = v.provider_id and l.model_id = $1"
)
_ASKS: Final = (
    "select n.id as provider_id, a.sla, a.rate_in::text as rate_in, a.rate_out::text as rate_out"
    " from unnest($1::bigint[]) as n(id) cross join lateral (select * from asks a"
    " where a.provider_id = n.id and a.model_id = $2"
    f" order by a.sla <> $3::bigint, a.sla limit {_MOST_WINDOWS}) a order by n.id, a.sla"
)


async def read_providers(
    connection: Connection, open_job: OpenJob, liveness_ms: int, custody: int | None
) -> list[ProviderFacts]:
    """Who the job's model concerns; more than are told of, for the rules to choose from."""
    job, place = open_job.job.row, open_job.job.place
    named = [number for number in (job.designated, open_job.leased_to) if number]
    rows = await connection.fetch(
        _PROVIDERS,
        job.model_id,
        job.sla_secs,
        int(job.rate_in),
        int(job.rate_out),
        job.units_in,
        job.units_out,
        named,
        liveness_ms,
        open_job.snapshot.block_time,
        custody,
        place.block,
        place.log,
    )
    asks = await _asks(connection, [row["provider_id"] for row in rows], job.model_id, job.sla_secs)
    return [ProviderFacts(**row, asks=tuple(asks[row["provider_id"]])) for row in rows]


async def _asks(
    connection: Connection, provider_ids: list[int], model_id: int, sla_secs: int
) -> dict[int, list[AskedWindow]]:
    found: dict[int, list[AskedWindow]] = defaultdict(list)
    rows: list[asyncpg.Record] = await connection.fetch(_ASKS, provider_ids, model_id, sla_secs)
    for row in rows:
        found[row["provider_id"]].append(AskedWindow(row["sla"], int(row["rate_in"]), int(row["rate_out"])))
    return found
