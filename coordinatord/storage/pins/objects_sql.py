"""Rows of containers and results in the pin store: held for an op, attached to a job, leased for removal; and the sums
of what is stored for each owner."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.storage.database.connections import Connection

HOLD: Final = timedelta(minutes=15)  # far beyond the wait for a receipt; a relay still alive then prolongs it
REMOVAL_LEASE: Final = timedelta(seconds=120)  # far beyond the store client's patience

# What keeps an object: a relay under way for its job, a line of a batch that goes on (its post may be dropped, and
# queued again), or a job that names it.
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
    """An upload's row: what the store holds already under its key, if anything."""

    cid: str | None


async def attach(connection: Connection, holds: Mapping[str, int], retention_seconds: int) -> None:
    """Their ops took effect: keep them for the retention period. Ends so many of the caller's holds of each key."""
    await connection.execute(
        "update objects set attached = true, decided = false, holders = holders - n.holds,"
        " expires_at = created_at + $3 * interval '1 second'"
        " from unnest($1::text[], $2::integer[]) as n(key, holds) where objects.key = n.key",
        list(holds),
        list(holds.values()),
        retention_seconds,
    )


async def release(connection: Connection, key: str) -> None:
    """End the caller's hold without a decision: the janitor makes it when the deadline passes."""
    await connection.execute("update objects set holders = holders - 1 where key = $1", key)


async def lease_removal(connection: Connection, key: str) -> bool:
    """End the caller's hold, and whether it may remove `key` from the store now: nothing needs it, nobody holds it."""
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
    """The object is gone from the store. A row that an upload took over meanwhile stays."""
    await connection.execute("delete from objects where key = $1 and removing_until is not null", key)


async def settle_expired(connection: Connection, retention_seconds: int) -> None:
    """Unattached rows past their deadline: attach what a job names, prolong what a relay under way needs."""
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
    """Keys that the caller is to remove from the store: past their deadline and needed by nothing."""
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
    """Content that is to be stored: a result, or the container of an order or of a batch's line."""

    key: str
    subject: bytes
    size: int
    sha256: bytes
    owner: bytes


async def hold_many(connection: Connection, new: Sequence[NewObject]) -> dict[str, str | None]:
    """Before the uploads, of each key once: key → the content id that the store holds already, if any. A key that is
    missing in the answer is being removed just now."""
    new = sorted(new, key=lambda one: one.key)  # in one order for all writers, or two of them wait for each other
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
    """Their posts are in the outbox, which keeps them from now on."""
    await connection.execute("update objects set holders = holders - 1 where key = any($1::text[])", keys)


_ALIVE: Final = f"(j.state = {JobState.CLAIMED} or (j.state = {JobState.OPEN} and j.expires_at >= p.block_time))"
# A job that the outbox or a batch may post yet, or has posted in a block that the index does not show.
# Relays that are under way and those that were mined are each found by an index of their own.
_COMING: Final = (
    "(exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state in ('queued', 'signed'))"
    " or exists (select from relays r where r.subject = t.subject and r.kind = 'post' and r.state = 'mined')"
    " or exists (select from batch_lines l where l.job_id = t.subject and l.relay_id is not null"
    " and l.code is null and l.result is null))"
)


async def decide(connection: Connection, *, retention_seconds: int, unsettled_seconds: int) -> None:
    """Shorten the life of attached objects whose job ended without a result, or was never posted. Nothing changes while
    the index is being rebuilt. After a reorganisation that revives a job, its objects are kept as before.

    Files keep the `expires_at` that their owner was told.
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
    """Sums for one owner, which triggers keep as rows of files, objects and batches change. `earned`: the owner has a
    settled job, or is a listed provider."""

    bytes: int
    rows: int
    earned: bool


async def stored_for(connection: Connection, owner: bytes) -> StoredFor:
    """In a transaction that has just added to them: others that add to the same owner's wait for its end."""
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
    """Of every kind, also of those that nothing is kept of."""
    rows = await connection.fetch("select kind, sum(bytes)::bigint as bytes from stored group by kind")
    return dict.fromkeys(KINDS, 0) | {row["kind"]: row["bytes"] for row in rows}


async def drop_empty(connection: Connection) -> None:
    await connection.execute("delete from stored where bytes = 0 and rows = 0")
