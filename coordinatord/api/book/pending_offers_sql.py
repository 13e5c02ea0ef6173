"""Offers of jobs with a pending post. An offer is deleted after the post and any claim of the job have ended.

A provider that takes an offer gets a lease of the job. So at most one provider holds the job, both before and after the
post is mined.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from coordinatord.api.book import leases_sql
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.posted_jobs_sql import ORDER_INTEGER_FIELDS, posted_order
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.chain.relayer.endings_sql import IS_MINED_START
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection

MAX_DELETED_OFFERS: Final = 1_000
_COLUMN_TYPES: Final = {
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
_COLUMNS: Final = ", ".join(_COLUMN_TYPES)
_OFFER_COLUMNS: Final = ", ".join(f"o.{name}" for name in _COLUMN_TYPES)
_ARRAY_PARAMETERS: Final = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_COLUMN_TYPES.values(), 1))
_UPDATED_COLUMNS: Final = ", ".join(f"{name} = excluded.{name}" for name in _COLUMN_TYPES if name != "job_id")
_POST_IS_LIVE: Final = "exists (select from relays r where r.id = o.relay_id and r.state in ('queued', 'signed'))"


@attrs.frozen(slots=True)
class PendingJob:
    """Job with a pending post, and the signatures for the provider to verify."""

    relay_id: int
    posted: PostedOrder
    order_sig: bytes = attrs.field(repr=False)
    pay_sig: bytes = attrs.field(repr=False)
    task_cid: str


def _offer_values(job: PendingJob) -> tuple[object, ...]:
    order, terms = job.posted.order, job.posted.terms
    numbers = (getattr(order, name) for name in ORDER_INTEGER_FIELDS)
    signatures = (job.order_sig, job.pay_sig)
    return (
        *(job.posted.job_id, job.relay_id, job.posted.owner, order.c),
        *(*numbers, *signatures, terms.fee_bps, terms.gas_fee, job.task_cid),
    )


def _pending_job(row: Mapping[str, Any]) -> PendingJob:
    return PendingJob(row["relay_id"], posted_order(row), row["order_sig"], row["pay_sig"], row["task_cid"])


async def insert_offers(connection: Connection, jobs: Sequence[PendingJob]) -> None:
    """Store the offers, and notify every process. A stored offer does not change while its post is pending."""
    # Keep one offer per job, because only one post of a job can succeed.
    by_job = {job.posted.job_id: job for job in jobs}
    await connection.fetch(
        f"with put as (insert into pending_offers as o ({_COLUMNS})"
        f" select * from unnest({_ARRAY_PARAMETERS}) on conflict (job_id) do update set {_UPDATED_COLUMNS},"
        " offered_to = '{}', claimed_by = null, stored_at = clock_timestamp()"
        f" where o.relay_id <> excluded.relay_id and not {_POST_IS_LIVE}"
        " returning o.model_id, o.designated)"
        " select pg_notify('outbox_moved', 'offered ' || model_id || ':' || designated) from put",
        *([*column] for column in zip(*(_offer_values(job) for job in by_job.values()), strict=True)),
    )


async def take_offers(
    connection: Connection, poller: PollKey, free_slots: int, job_filter: JobFilter, *, milliseconds: int
) -> list[PendingJob]:
    """Lease up to `free_slots` offers to the provider, oldest first, as far as the provider's capacity has room beside
    its current jobs. Skip offers that the provider may not claim or has received before. Call this in a transaction."""
    await leases_sql.lock_leases(connection, poller.model_id)
    rows = await connection.fetch(
        "with room as (select least($3::bigint, c.room - (select count(*) from leases l where l.provider_id = $1"
        "  and l.expires_at > clock_timestamp()"
        "  and not exists (select from jobs j where j.job_id = l.job_id and j.state <> 0))) as jobs"
        " from claimers c where c.provider_id = $1 and c.model_id = $2 and c.may_claim),"
        " chosen as (select o.job_id from pending_offers o where o.claimed_by is null and o.job_id in ("
        "  select f.job_id from free_offers f where f.model_id = $2"
        "  and f.designated in (0, $1) and not $1 = any(f.offered_to)"
        "  and ($4::numeric is null or f.rate_in >= $4) and ($5::numeric is null or f.rate_out >= $5)"
        "  and ($6::bytea is null or f.owner = $6)"
        "  order by f.relay_id limit greatest(0, coalesce((select jobs from room), 0)))"
        # Lock the offer before the lease, as a claim does, which avoids deadlocks.
        " for update of o skip locked),"
        " leased as (insert into leases as l (job_id, provider_id, model_id, expires_at)"
        " select job_id, $1, $2, clock_timestamp() + $7 * interval '1 millisecond' from chosen order by job_id"
        " on conflict (job_id) do update set provider_id = excluded.provider_id, model_id = excluded.model_id,"
        " expires_at = excluded.expires_at where l.expires_at <= clock_timestamp() returning l.job_id)"
        " update pending_offers o set offered_to = o.offered_to || $1 from leased where o.job_id = leased.job_id"
        f" returning {_OFFER_COLUMNS}",
        poller.provider_id,
        poller.model_id,
        free_slots,
        job_filter.min_rate_in,
        job_filter.min_rate_out,
        job_filter.owner,
        milliseconds,
    )
    return sorted((_pending_job(row) for row in rows), key=lambda job: job.relay_id)


async def notify_unclaimed_offers(connection: PreparedConnection, taken_offers: Sequence[tuple[bytes, int]]) -> None:
    """Notify every process of the offers that the given providers did not claim and no other provider took since."""
    await connection.fetch(
        "with lapsed as (select o.model_id, o.designated from pending_offers o"
        " join unnest($1::bytea[], $2::bigint[]) as g(job_id, provider_id) on g.job_id = o.job_id"
        f" where o.claimed_by is null and o.offered_to[cardinality(o.offered_to)] = g.provider_id and {_POST_IS_LIVE})"
        " select pg_notify('outbox_moved', 'offered ' || model_id || ':' || designated) from lapsed",
        [job_id for job_id, _ in taken_offers],
        [provider_id for _, provider_id in taken_offers],
    )


async def claim_offer(connection: Connection, job_id: bytes, provider_id: int, *, seconds: int) -> RegisteredJob | None:
    """Bind an offer to the provider that took the offer last, and lease the job to this provider for `seconds`. Return
    None for any other provider, or if the post has ended."""
    row = await connection.fetchrow(
        "with offer as (select o.job_id, o.model_id from pending_offers o"
        " where o.job_id = $1 and o.offered_to[cardinality(o.offered_to)] = $2"
        f" and coalesce(o.claimed_by = $2, true) and {_POST_IS_LIVE} for update of o),"
        " held as (insert into leases as l (job_id, provider_id, model_id, expires_at)"
        " select job_id, $2, model_id, clock_timestamp() + $3 * interval '1 second' from offer"
        " on conflict (job_id) do update set provider_id = excluded.provider_id, expires_at = excluded.expires_at"
        " where l.provider_id = excluded.provider_id or l.expires_at <= clock_timestamp() returning l.job_id)"
        " update pending_offers o set claimed_by = $2 from held join offer f using (job_id)"
        f" where o.job_id = f.job_id returning {_OFFER_COLUMNS}",
        job_id,
        provider_id,
        seconds,
    )
    return None if row is None else RegisteredJob(posted_order(row), row["pay_sig"])


async def read_claimed_terms(connection: Connection, job_id: bytes, provider_id: int) -> RegisteredJob | None:
    """Return the terms of an offer that the provider has claimed."""
    row = await connection.fetchrow(
        f"select {_OFFER_COLUMNS} from pending_offers o where o.job_id = $1 and o.claimed_by = $2", job_id, provider_id
    )
    return None if row is None else RegisteredJob(posted_order(row), row["pay_sig"])


async def delete_ended_offers(connection: Connection) -> int:
    """Delete up to MAX_DELETED_OFFERS offers after their post and claim have ended. End the lease of a job if its claim
    was refused. Return the number of ended leases."""
    freed: int = await connection.fetchval(
        f"with ended as (select o.job_id, o.claimed_by from pending_offers o where not {_POST_IS_LIVE} and not exists"
        " (select from relays r where r.subject = o.job_id and r.kind = 'claim' and r.state in ('queued', 'signed'))"
        " order by o.job_id limit $1 for update skip locked),"
        " gone as (delete from pending_offers o using ended e where o.job_id = e.job_id),"
        " freed as (update leases l set expires_at = clock_timestamp() from ended e"
        " where l.job_id = e.job_id and l.provider_id = e.claimed_by and l.expires_at > clock_timestamp()"
        f" and not exists (select from relays r where r.subject = l.job_id and r.kind = 'claim' and {IS_MINED_START})"
        " returning l.job_id)"
        " select count(*) from freed",
        MAX_DELETED_OFFERS,
    )
    return freed
