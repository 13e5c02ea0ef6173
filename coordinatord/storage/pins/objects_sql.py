"""Queries on containers and results in the pin store, which are held for an op, attached to a job, or leased for
removal. Also the sums of stored content per owner."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.storage.database.connections import Connection

# Life of a row that is not attached. Far longer than the wait for a receipt, and extended while a relay is pending.
HOLD_TIME: Final = timedelta(minutes=15)
# Far longer than the timeouts of the store client.
REMOVAL_LEASE: Final = timedelta(seconds=120)

# An object is needed by a pending relay of its job, by an unfinished batch line (its post may be dropped and queued
# again), or by a job that names the object.
_IS_NEEDED: Final = (
    "(exists (select 1 from relays r where r.subject = o.subject and r.state in ('queued', 'signed')"
    " and r.kind in ('post', 'settle'))"
    " or exists (select 1 from batch_lines l where l.job_id = o.subject and l.relay_id is not null"
    " and l.code is null and l.result is null) or {named})"
)
_IS_NAMED_BY_JOB: Final = (
    "exists (select 1 from jobs j where j.job_id = o.subject and (j.task_cid = o.cid or j.result_cid = o.cid))"
)


@attrs.frozen(slots=True)
class HeldObject:
    """Held object. `cid` is the content id that the store already holds under the object's key, if any."""

    cid: str | None


async def attach_objects(connection: Connection, holds: Mapping[str, int], retention_seconds: int) -> None:
    """Keep objects for the retention period, because their ops took effect. `holds` says how many of the caller's holds
    to end, by key."""
    await connection.execute(
        "update objects set attached = true, decided = false, holders = holders - n.holds,"
        " expires_at = created_at + $3 * interval '1 second'"
        " from unnest($1::text[], $2::integer[]) as n(key, holds) where objects.key = n.key",
        list(holds),
        list(holds.values()),
        retention_seconds,
    )


async def release_hold(connection: Connection, key: str) -> None:
    """End the caller's hold. After the deadline of the row, the janitor decides whether to remove the object."""
    await connection.execute("update objects set holders = holders - 1 where key = $1", key)


async def lease_removal(connection: Connection, key: str) -> bool:
    """End the caller's hold. Return True if nothing needs the object and no other caller holds it, so that the caller
    may remove it now."""
    leased: bool | None = await connection.fetchval(
        f"with o as (select key, not attached and holders <= 1 and removing_until is null"
        f" and not {_IS_NEEDED.format(named=_IS_NAMED_BY_JOB)} as unneeded from objects o where key = $1 for update)"
        " update objects set holders = holders - 1,"
        " removing_until = case when o.unneeded then clock_timestamp() + $2 else removing_until end"
        " from o where objects.key = o.key returning o.unneeded",
        key,
        REMOVAL_LEASE,
    )
    return leased is True


async def delete_object_row(connection: Connection, key: str) -> None:
    """Delete the row of an object that was removed from the store, unless a new upload holds the row by now."""
    await connection.execute("delete from objects where key = $1 and removing_until is not null", key)


async def attach_or_extend_expired(connection: Connection, retention_seconds: int) -> None:
    """Attach unattached rows past their deadline if a job names them. Extend rows that a pending relay needs."""
    await connection.execute(
        "update objects o set attached = named.named,"
        " expires_at = case when named.named then o.created_at + $1 * interval '1 second'"
        " else clock_timestamp() + $2 end"
        f" from (select key, {_IS_NAMED_BY_JOB} as named from objects o"
        " where not attached and expires_at < statement_timestamp()"
        f" and {_IS_NEEDED.format(named=_IS_NAMED_BY_JOB)}) as named where named.key = o.key",
        retention_seconds,
        HOLD_TIME,
    )


async def lease_expired_objects(connection: Connection, limit: int) -> list[str]:
    """Lease to the caller the expired keys that nothing needs. The caller removes their objects from the store."""
    rows = await connection.fetch(
        "update objects set removing_until = clock_timestamp() + $2 where key in (select key from objects o"
        " where expires_at < statement_timestamp() and (removing_until is null or removing_until < clock_timestamp())"
        f" and (attached or not {_IS_NEEDED.format(named=_IS_NAMED_BY_JOB)})"
        " order by expires_at limit $1 for update skip locked) returning key",
        limit,
        REMOVAL_LEASE,
    )
    return [row["key"] for row in rows]


@attrs.frozen(slots=True)
class NewObject:
    """Content to be stored: a result, or the container of an order or batch line."""

    key: str
    subject: bytes
    size: int
    sha256: bytes
    owner: bytes


async def hold_objects(connection: Connection, new_objects: Sequence[NewObject]) -> dict[str, str | None]:
    """Hold keys before their uploads, each key once. Return the content id that the store already holds for each key,
    if any.

    A key that is missing from the answer is being removed.
    """
    # All writers use the same order, which avoids deadlocks.
    new_objects = sorted(new_objects, key=lambda new_object: new_object.key)
    rows = await connection.fetch(
        "insert into objects as o (key, subject, bytes, sha256, expires_at, owner)"
        " select n.key, n.subject, n.bytes, n.sha256, clock_timestamp() + $5, n.owner"
        " from unnest($1::text[], $2::bytea[], $3::bigint[], $4::bytea[], $6::bytea[])"
        " as n(key, subject, bytes, sha256, owner)"
        " on conflict (key) do update set removing_until = null,"
        " holders = case when o.removing_until is null then o.holders + 1 else 1 end,"
        " expires_at = greatest(o.expires_at, excluded.expires_at),"
        " cid = case when o.sha256 = excluded.sha256 and o.removing_until is null then o.cid end,"
        " bytes = excluded.bytes, sha256 = excluded.sha256"
        " where o.removing_until is null or o.removing_until < clock_timestamp()"
        " returning key, cid",
        [new_object.key for new_object in new_objects],
        [new_object.subject for new_object in new_objects],
        [new_object.size for new_object in new_objects],
        [new_object.sha256 for new_object in new_objects],
        HOLD_TIME,
        [new_object.owner for new_object in new_objects],
    )
    return {row["key"]: row["cid"] for row in rows}


async def set_cids(connection: Connection, cids: Mapping[str, str]) -> None:
    await connection.execute(
        "update objects set cid = n.cid from unnest($1::text[], $2::text[]) as n(key, cid) where objects.key = n.key",
        list(cids),
        list(cids.values()),
    )


async def release_holds(connection: Connection, keys: Sequence[str]) -> None:
    """End holds whose posts are now in the outbox. From then on, the relay in the outbox keeps the object."""
    await connection.execute("update objects set holders = holders - 1 where key = any($1::text[])", keys)


_IS_ALIVE: Final = f"(j.state = {JobState.CLAIMED} or (j.state = {JobState.OPEN} and j.expires_at >= p.block_time))"
# True for a job that the outbox or a batch may still post, or that was posted in a block not indexed yet. Pending and
# mined relays are looked up separately, because each has an index.
_MAY_BE_POSTED: Final = (
    "(exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state in ('queued', 'signed'))"
    " or exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state = 'mined')"
    " or exists (select from batch_lines l where l.job_id = t.subject and l.relay_id is not null"
    " and l.code is null and l.result is null))"
)


async def shorten_lifetimes(connection: Connection, *, retention_seconds: int, unsettled_seconds: int) -> None:
    """Shorten the life of attached objects if their job ended without a result or was never posted.

    Nothing changes while the index is being rebuilt. When a reorg revives a job, its objects are kept as before. Files
    keep the `expires_at` that their owner was given.
    """
    await connection.execute(
        "update objects t set decided = false, expires_at = t.created_at + $1 * interval '1 second'"
        " from jobs j cross join index_position p where t.attached and t.decided and t.removing_until is null"
        " and t.expires_at < statement_timestamp() and t.created_at + $1 * interval '1 second' > clock_timestamp()"
        f" and j.job_id = t.subject and (j.state = {JobState.SETTLED} or {_IS_ALIVE})",
        retention_seconds,
    )
    await connection.execute(
        "update objects t set decided = true, expires_at = case when e.settled then t.expires_at"
        " else least(t.expires_at, clock_timestamp() + $1 * interval '1 second') end"
        " from (select t.ctid as place, j.state is not distinct from 2 as settled from index_position p,"
        " objects t left join jobs j on j.job_id = t.subject"
        " where t.attached and not t.decided and t.subject is not null and not p.rebuilding"
        f" and case when j.job_id is null then not {_MAY_BE_POSTED} else not {_IS_ALIVE} end) e"
        " where t.ctid = e.place",
        unsettled_seconds,
    )


STORED_KINDS: Final = ("containers", "results", "inputs", "batch_files", "batches")


@attrs.frozen(slots=True)
class StoredSums:
    """Sums of one owner's stored bytes and rows, maintained by triggers on files, objects and batches. `has_earned`
    means that the owner has a settled job or is a listed provider."""

    bytes: int
    rows: int
    has_earned: bool


async def read_stored_sums(connection: Connection, owner: bytes) -> StoredSums:
    """Return the sums of an owner. Call this in the transaction that has just added to them: its lock on the rows makes
    other transactions of the same owner wait."""
    row = await connection.fetchrow(
        "select coalesce(sum(bytes), 0)::bigint, coalesce(sum(rows), 0)::bigint, has_earned($1) from stored"
        " where owner = $1",
        owner,
    )
    return StoredSums(*row)


async def read_newcomer_sums(connection: Connection) -> tuple[int, int]:
    """Return the total bytes and rows of all wallets that `mark_earners` has not marked."""
    row = await connection.fetchrow(
        "select coalesce(sum(bytes), 0)::bigint, coalesce(sum(rows), 0)::bigint from stored where not earned"
    )
    return row[0], row[1]


async def mark_earners(connection: Connection) -> None:
    """Mark wallets that have a settled job or are listed providers, so that the totals of newcomers exclude them."""
    await connection.execute(
        "update stored s set earned = true from (select owner, kind from stored where not earned and has_earned(owner)"
        " order by owner, kind for update skip locked) e where (s.owner, s.kind) = (e.owner, e.kind)"
    )


async def has_earned(connection: Connection, wallet: bytes) -> bool:
    """Return True for a wallet with a settled job or a listed provider."""
    found: bool = await connection.fetchval("select has_earned($1)", wallet)
    return found


async def read_bytes_by_kind(connection: Connection) -> dict[str, int]:
    """Return the stored bytes of every kind, including kinds without content."""
    rows = await connection.fetch("select kind, sum(bytes)::bigint as bytes from stored group by kind")
    return dict.fromkeys(STORED_KINDS, 0) | {row["kind"]: row["bytes"] for row in rows}


async def drop_empty_sums(connection: Connection) -> None:
    await connection.execute("delete from stored where bytes = 0 and rows = 0")
