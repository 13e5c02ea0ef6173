"""Offers of jobs whose post is under way: stored with the post, held by one provider at a time, deleted after its end.

Who holds one is in `leases`, so that a job has one holder before and after its block.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common.messages.jobs import Order
from common.quotes import FeeTerms
from coordinatord.api.book.book_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.chain.relayer.endings_sql import BEGINNING
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection

MAX_ENDED: Final = 1_000
_ORDER: Final = (
    *("c", "model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out"),
    *("designated", "expires_at"),
)
_TYPES: Final = {
    "job_id": "bytea",
    "relay_id": "bigint",
    "owner": "bytea",
    "c": "bytea",
    "model_id": "bigint",
    "sla_secs": "bigint",
    "rate_in": "numeric",
    "rate_out": "numeric",
    "units_in": "bigint",
    "units_out": "bigint",
    "designated": "bigint",
    "expires_at": "bigint",
    "order_sig": "bytea",
    "pay_sig": "bytea",
    "fee_bps": "integer",
    "gas_fee": "numeric",
    "task_cid": "text",
}
_COLUMNS: Final = ", ".join(_TYPES)
_READ: Final = ", ".join(f"o.{name}" for name in _TYPES)
_ARRAYS: Final = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_TYPES.values(), 1))
_RENEWED: Final = ", ".join(f"{name} = excluded.{name}" for name in _TYPES if name != "job_id")
_POST_LIVES: Final = "exists (select from relays r where r.id = o.relay_id and r.state in ('queued', 'signed'))"
_HELD: Final = "exists (select from leases l where l.job_id = o.job_id and l.expires_at > clock_timestamp())"
_INDEXED: Final = "exists (select from jobs j where j.job_id = o.job_id)"


@attrs.frozen(slots=True)
class PendingJob:
    """A job whose post is under way: what it is posted with, and the signatures that a provider checks itself."""

    relay_id: int
    posted: PostedOrder
    order_sig: bytes = attrs.field(repr=False)
    pay_sig: bytes = attrs.field(repr=False)
    task_cid: str

    @property
    def registered(self) -> RegisteredJob:
        return RegisteredJob(self.posted, self.pay_sig)


def _columns(job: PendingJob) -> tuple[object, ...]:
    order, terms = job.posted.order, job.posted.terms
    return (
        *(job.posted.job_id, job.relay_id, job.posted.owner),
        *(getattr(order, name) for name in _ORDER),
        *(job.order_sig, job.pay_sig, terms.fee_bps, terms.gas_fee, job.task_cid),
    )


def _pending(row: Mapping[str, Any]) -> PendingJob:
    numbers = {name: int(row[name]) for name in _ORDER if name != "c"}
    order = Order(c=row["c"], **numbers)
    terms = FeeTerms(fee_bps=row["fee_bps"], gas_fee=int(row["gas_fee"]))
    posted = PostedOrder(order, row["owner"], terms)
    return PendingJob(row["relay_id"], posted, row["order_sig"], row["pay_sig"], row["task_cid"])


async def store(connection: Connection, jobs: Sequence[PendingJob]) -> None:
    """Offer these, and tell every process. A job that is offered already stays as it is while its post lives."""
    by_job = {job.posted.job_id: job for job in jobs}  # of two posts of one job, one can come true
    await connection.fetch(
        f"with put as (insert into pending_offers as o ({_COLUMNS})"
        f" select * from unnest({_ARRAYS}) on conflict (job_id) do update set {_RENEWED},"
        " offered_to = '{}', claimed_by = null, stored_at = clock_timestamp()"
        f" where o.relay_id <> excluded.relay_id and not {_POST_LIVES}"
        " returning o.model_id, o.designated)"
        " select pg_notify('job_offered', model_id || ':' || designated) from put",
        *([*column] for column in zip(*(_columns(job) for job in by_job.values()), strict=True)),
    )


async def take(
    connection: Connection, poller: PollKey, free: int, wanted: JobFilter, *, milliseconds: int
) -> list[PendingJob]:
    """Give the provider as many as it asks for, may claim and has not been given before; oldest first, held for it by a
    lease of that length. No more than its capacity leaves it beside all that it holds."""
    # Two polls of one provider take turns, with those for jobs of the book, too: each counts what the other took.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended('poll ' || $1::text, 0))", str(poller[0]))
    rows = await connection.fetch(
        "with room as (select least($3::bigint, greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000)"
        " - v.active_jobs - (select count(*) from leases l where l.provider_id = $1"
        "  and l.expires_at > clock_timestamp()"
        "  and not exists (select from jobs j where j.job_id = l.job_id and j.state <> 0))) as jobs"
        " from providers v where v.provider_id = $1 and v.listed and (v.allow_all_models or exists ("
        "  select from provider_models x where x.provider_id = $1 and x.model_id = $2))),"
        " chosen as (select o.job_id from pending_offers o where o.model_id = $2 and o.claimed_by is null"
        f" and o.designated in (0, $1) and not $1 = any(o.offered_to) and {_POST_LIVES}"
        f" and not {_HELD} and not {_INDEXED}"
        " and ($4::numeric is null or o.rate_in >= $4) and ($5::numeric is null or o.rate_out >= $5)"
        " and ($6::bytea is null or o.owner = $6)"
        " order by o.relay_id limit greatest(0, coalesce((select jobs from room), 0)) for update of o skip locked),"
        " put as (insert into leases as l (job_id, provider_id, model_id, expires_at)"
        " select job_id, $1, $2, clock_timestamp() + $7 * interval '1 millisecond' from chosen order by job_id"
        " on conflict (job_id) do update set provider_id = excluded.provider_id, model_id = excluded.model_id,"
        " expires_at = excluded.expires_at where l.expires_at <= clock_timestamp() returning l.job_id)"
        " update pending_offers o set offered_to = o.offered_to || $1 from put where o.job_id = put.job_id"
        f" returning {_READ}",
        poller.provider_id,
        poller.model_id,
        free,
        wanted.min_rate_in,
        wanted.min_rate_out,
        wanted.owner,
        milliseconds,
    )
    return sorted((_pending(row) for row in rows), key=lambda job: job.relay_id)


async def some_left(connection: Connection, model_id: int) -> bool:
    """True when there is an offer for whoever asks next."""
    found: bool = await connection.fetchval(
        "select exists(select from pending_offers o where o.model_id = $1 and o.claimed_by is null and o.designated = 0"
        f" and {_POST_LIVES} and not {_HELD} and not {_INDEXED})",
        model_id,
    )
    return found


async def pass_on(line: PreparedConnection, given: Sequence[tuple[bytes, int]]) -> int:
    """Of offers that were given so long ago that their time is over, offer those to others that were not claimed, whose
    post is under way still. Returns how many there were."""
    rows = await line.fetch(
        "with lapsed as (select o.model_id, o.designated from pending_offers o"
        " join unnest($1::bytea[], $2::bigint[]) as g(job_id, provider_id) on g.job_id = o.job_id"
        f" where o.claimed_by is null and o.offered_to[cardinality(o.offered_to)] = g.provider_id and {_POST_LIVES})"
        " select pg_notify('job_offered', model_id || ':' || designated) from lapsed",
        [job_id for job_id, _ in given],
        [provider_id for _, provider_id in given],
    )
    return len(rows)


async def claim(
    connection: Connection, job_id: bytes, provider_id: int, *, seconds: int
) -> tuple[PendingJob, bool] | None:
    """Bind an offer to the provider that it was given last, and hold the job for it so long; True when it was bound to
    nobody before. None for anybody else, and when the post has ended."""
    row = await connection.fetchrow(
        "with offer as (select o.job_id, o.model_id, o.claimed_by is null as first from pending_offers o"
        " where o.job_id = $1 and o.offered_to[cardinality(o.offered_to)] = $2"
        f" and coalesce(o.claimed_by = $2, true) and {_POST_LIVES} for update of o),"
        " held as (insert into leases as l (job_id, provider_id, model_id, expires_at)"
        " select job_id, $2, model_id, clock_timestamp() + $3 * interval '1 second' from offer"
        " on conflict (job_id) do update set provider_id = excluded.provider_id, expires_at = excluded.expires_at"
        " where l.provider_id = excluded.provider_id or l.expires_at <= clock_timestamp() returning l.job_id)"
        " update pending_offers o set claimed_by = $2 from held join offer f using (job_id)"
        f" where o.job_id = f.job_id returning {_READ}, f.first",
        job_id,
        provider_id,
        seconds,
    )
    return None if row is None else (_pending(row), row["first"])


async def claimed_by(connection: Connection, job_id: bytes, provider_id: int) -> PendingJob | None:
    row = await connection.fetchrow(
        f"select {_READ} from pending_offers o where o.job_id = $1 and o.claimed_by = $2", job_id, provider_id
    )
    return None if row is None else _pending(row)


async def delete_ended(connection: Connection) -> int:
    """Delete up to MAX_ENDED offers whose post and claim have ended. Where the claim was refused, free the job's lease
    for others. Return the number of leases freed."""
    freed: int = await connection.fetchval(
        f"with ended as (select o.job_id, o.claimed_by from pending_offers o where not {_POST_LIVES} and not exists"
        " (select from relays r where r.subject = o.job_id and r.kind = 'claim' and r.state in ('queued', 'signed'))"
        " order by o.job_id limit $1 for update skip locked),"
        " gone as (delete from pending_offers o using ended e where o.job_id = e.job_id),"
        " freed as (update leases l set expires_at = clock_timestamp() from ended e"
        " where l.job_id = e.job_id and l.provider_id = e.claimed_by and l.expires_at > clock_timestamp()"
        f" and not exists (select from relays r where r.subject = l.job_id and r.kind = 'claim' and {BEGINNING})"
        " returning l.job_id)"
        " select count(*) from freed",
        MAX_ENDED,
    )
    return freed
