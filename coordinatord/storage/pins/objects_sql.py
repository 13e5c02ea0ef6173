"""Rows of containers and results in the pin store: held for an op, attached to a job, or leased for removal. Also
the sums of stored content per owner."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.storage.database.connections import Connection

# Far longer than the wait for a receipt. A relay that is still under way then extends it.
HOLD: Final = timedelta(minutes=15)
# Far longer than the timeouts of the store client.
REMOVAL_LEASE: Final = timedelta(seconds=120)

# An object is needed by a relay under way for its job, by an unfinished batch line (its post may be dropped and queued
# again), or by a job that names it.
_NEEDED: Final = (
    "(exists (select 1 from relays r where r.subject = o.subject and r.state in ('queued', 'signed')"
    " and r.kind in ('post', 'settle'))"
    " or exists (select 1 from batch_lines l where l.job_id = o.subject and l.relay_id is not null"
    " and l.code is null and l.result is null) or {named})"
)
_NAMED: Final = (
    "exists (select 1 from jobs j where j.job_id = o.subject and (j.task_cid = o.cid or j.result_cid = o.cid))"
)


@attrs.frozen(slots=True)
class HeldObject:
    """Row of an upload, with the content id that the store already holds under its key, if any."""

    cid: str | None


async def attach(connection: Connection, holds: Mapping[str, int], retention_seconds: int) -> None:
    """Keep objects for the retention period, because their ops took effect. End `holds` of the caller's holds per
    key."""
    await connection.execute(
        "update objects set attached = true, decided = false, holders = holders - n.holds,"
        " expires_at = created_at + $3 * interval '1 second'"
        " from unnest($1::text[], $2::integer[]) as n(key, holds) where objects.key = n.key",
        list(holds),
        list(holds.values()),
        retention_seconds,
    )


async def release(connection: Connection, key: str) -> None:
    """End the caller's hold without a decision. The janitor decides after the deadline."""
    await connection.execute("update objects set holders = holders - 1 where key = $1", key)


async def lease_removal(connection: Connection, key: str) -> bool:
    """End the caller's hold. Return True if no one needs or holds the object, so that the caller may remove it now."""
    leased: bool | None = await connection.fetchval(
        f"with o as (select key, not attached and holders <= 1 and removing_until is null"
        f" and not {_NEEDED.format(named=_NAMED)} as unneeded from objects o where key = $1 for update)"
        " update objects set holders = holders - 1,"
        " removing_until = case when o.unneeded then clock_timestamp() + $2 else removing_until end"
        " from o where objects.key = o.key returning o.unneeded",
        key,
        REMOVAL_LEASE,
    )
    return leased is True


async def forget(connection: Connection, key: str) -> None:
    """Delete the row of an object that was removed from the store, unless a new upload has taken over the row."""
    await connection.execute("delete from objects where key = $1 and removing_until is not null", key)


async def settle_expired(connection: Connection, retention_seconds: int) -> None:
    """Attach unattached rows past their deadline if a job names them. Extend rows that a pending relay needs."""
    await connection.execute(
        "update objects o set attached = named.named,"
        " expires_at = case when named.named then o.created_at + $1 * interval '1 second'"
        " else clock_timestamp() + $2 end"
        f" from (select key, {_NAMED} as named from objects o where not attached and expires_at < statement_timestamp()"
        f" and {_NEEDED.format(named=_NAMED)}) as named where named.key = o.key",
        retention_seconds,
        HOLD,
    )


async def lease_expired(connection: Connection, limit: int) -> list[str]:
    """Return keys past their deadline that nothing needs, for the caller to remove from the store."""
    rows = await connection.fetch(
        "update objects set removing_until = clock_timestamp() + $2 where key in (select key from objects o"
        " where expires_at < statement_timestamp() and (removing_until is null or removing_until < clock_timestamp())"
        f" and (attached or not {_NEEDED.format(named=_NAMED)})"
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


async def hold_many(connection: Connection, new: Sequence[NewObject]) -> dict[str, str | None]:
    """Hold keys before their uploads, each key once. Return the content id that the store already holds for each key,
    if any.

    A key that is missing from the answer is being removed.
    """
    # All writers use the same order, which avoids deadlocks.
    new = sorted(new, key=lambda one: one.key)
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
        [one.key for one in new],
        [one.subject for one in new],
        [one.size for one in new],
        [one.sha256 for one in new],
        HOLD,
        [one.owner for one in new],
    )
    return {row["key"]: row["cid"] for row in rows}


async def set_cids(connection: Connection, cids: Mapping[str, str]) -> None:
    await connection.execute(
        "update objects set cid = n.cid from unnest($1::text[], $2::text[]) as n(key, cid) where objects.key = n.key",
        list(cids),
        list(cids.values()),
    )


async def release_many(connection: Connection, keys: Sequence[str]) -> None:
    """End holds after their posts are stored in the outbox. The outbox keeps their objects from now on."""
    await connection.execute("update objects set holders = holders - 1 where key = any($1::text[])", keys)


_ALIVE: Final = f"(j.state = {JobState.CLAIMED} or (j.state = {JobState.OPEN} and j.expires_at >= p.block_time))"
# Job that the outbox or a batch may still post, or that was posted in a block not indexed yet. Relays under way and
# mined relays are looked up separately, because each has an index.
_COMING: Final = (
    "(exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state in ('queued', 'signed'))"
    " or exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state = 'mined')"
    " or exists (select from batch_lines l where l.job_id = t.subject and l.relay_id is not null"
    " and l.code is null and l.result is null))"
)


async def decide(connection: Connection, *, retention_seconds: int, unsettled_seconds: int) -> None:
    """Shorten the life of attached objects if their job ended without a result or was never posted.

    Nothing changes while the index is being rebuilt. When a reorg revives a job, its objects are kept as before. Files
    keep the `expires_at` that their owner was given.
    """
    await connection.execute(
        "update objects t set decided = false, expires_at = t.created_at + $1 * interval '1 second'"
        " from jobs j cross join index_position p where t.attached and t.decided and t.removing_until is null"
        " and t.expires_at < statement_timestamp() and t.created_at + $1 * interval '1 second' > clock_timestamp()"
        f" and j.job_id = t.subject and (j.state = {JobState.SETTLED} or {_ALIVE})",
        retention_seconds,
    )
    await connection.execute(
        "update objects t set decided = true, expires_at = case when e.settled then t.expires_at"
        " else least(t.expires_at, clock_timestamp() + $1 * interval '1 second') end"
        " from (select t.ctid as place, j.state is not distinct from 2 as settled from index_position p,"
        " objects t left join jobs j on j.job_id = t.subject"
        " where t.attached and not t.decided and t.subject is not null and not p.rebuilding"
        f" and case when j.job_id is null then not {_COMING} else not {_ALIVE} end) e"
        " where t.ctid = e.place",
        unsettled_seconds,
    )


KINDS: Final = ("containers", "results", "inputs", "batch_files", "batches")


@attrs.frozen(slots=True)
class StoredFor:
    """Sums for one owner, maintained by triggers on files, objects and batches. `earned` means that the owner has a
    settled job or is a listed provider."""

    bytes: int
    rows: int
    earned: bool


async def stored_for(connection: Connection, owner: bytes) -> StoredFor:
    """Return the sums of an owner, in the transaction that has just added to them. The lock on the rows makes other
    transactions of the same owner wait."""
    row = await connection.fetchrow(
        "select coalesce(sum(bytes), 0)::bigint, coalesce(sum(rows), 0)::bigint, has_earned($1) from stored"
        " where owner = $1",
        owner,
    )
    return StoredFor(*row)


async def stored_for_newcomers(connection: Connection) -> tuple[int, int]:
    """Return the bytes and rows of all wallets together that had earned nothing when the janitor last looked."""
    row = await connection.fetchrow(
        "select coalesce(sum(bytes), 0)::bigint, coalesce(sum(rows), 0)::bigint from stored where not earned"
    )
    return row[0], row[1]


async def mark_earned(connection: Connection) -> None:
    """Mark wallets that have earned, so that the totals of newcomers exclude them."""
    await connection.execute(
        "update stored s set earned = true from (select owner, kind from stored where not earned and has_earned(owner)"
        " order by owner, kind for update skip locked) e where (s.owner, s.kind) = (e.owner, e.kind)"
    )


async def has_earned(connection: Connection, wallet: bytes) -> bool:
    """True for a wallet with a settled job, or of a listed provider."""
    found: bool = await connection.fetchval("select has_earned($1)", wallet)
    return found


async def bytes_by_kind(connection: Connection) -> dict[str, int]:
    """Return the stored bytes of every kind, including kinds without content."""
    rows = await connection.fetch("select kind, sum(bytes)::bigint as bytes from stored group by kind")
    return dict.fromkeys(KINDS, 0) | {row["kind"]: row["bytes"] for row in rows}


async def drop_empty(connection: Connection) -> None:
    await connection.execute("delete from stored where bytes = 0 and rows = 0")
