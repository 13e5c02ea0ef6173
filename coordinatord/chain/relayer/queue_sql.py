"""The outbox's queue on the relayer's side: the relays to sign next, and the relays that end unsigned."""

from collections.abc import Iterable, Sequence
from typing import Final

import asyncpg
import attrs

from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.storage.database.columns import columns
from coordinatord.storage.database.connections import Connection

# A requeued relay waits for older relays of its subject, because it builds on their effects. After a reorg they may be
# mined later, from another account.
_WAITS_FOR_OLDER: Final = (
    "(requeued > 0 and exists (select from relays o where o.subject = relays.subject and o.id < relays.id"
    " and o.state in ('queued', 'signed')))"
)
_NAMED: Final = "($2::text[] is null or kind = any($2::text[]))"
_BUILD_ON_OTHERS: Final = frozenset({RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.CANCEL})


@attrs.frozen(slots=True)
class WaitingRelay:
    """Queued relay taken by the relayer."""

    id: int
    kind: RelayKind = attrs.field(converter=RelayKind)
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    priority: int
    requeued: int


async def take(
    connection: Connection, limit: int, batch_limit: int, kinds: Iterable[RelayKind] | None = None
) -> list[WaitingRelay]:
    """Return the next relays to sign, locked until the transaction ends. Skip relays that another account has locked
    and relays that wait for an older one. `kinds` restricts the kinds.

    Take at most `batch_limit` posts of batches, because other callers wait one round for them. Also take the relays
    that the taken ones build on, beyond the limits: a claim sorts before all posts, and would never meet its own post
    otherwise.
    """
    named = None if kinds is None else [kind.value for kind in kinds]
    rows = await _take(connection, f"priority < 3 and {_NAMED}", limit, named)
    if len(rows) < limit:
        count = min(limit - len(rows), batch_limit)
        rows += await _take(connection, f"priority = 3 and {_NAMED}", count, named)
    building = [row["id"] for row in rows if row["kind"] in _BUILD_ON_OTHERS]
    if named is None and building and (older := await _older_of(connection, building, [row["id"] for row in rows])):
        rows += await _take(connection, "id = any($2::bigint[])", len(older), older)
    return [WaitingRelay(*row) for row in rows]


async def accounts_at_work(connection: Connection, chain_id: int) -> int:
    """Return the number of accounts that signed the latest 64 transactions, at least one."""
    accounts: int = await connection.fetchval(
        "select greatest(count(distinct account), 1) from"
        " (select account, chain_id from relay_txs order by id desc limit 64) as latest where chain_id = $1",
        chain_id,
    )
    return accounts


async def _older_of(connection: Connection, building: Sequence[int], taken: Sequence[int]) -> list[int]:
    """Return queued relays that the relays of `building` build on.

    A separate statement, because as part of `_take` it would run for every row of a long queue.
    """
    rows = await connection.fetch(
        "with behind as materialized (select id, subject from relays where id = any($1::bigint[]))"
        " select distinct o.id from behind b join relays o on o.subject = b.subject and o.id < b.id"
        " and o.state = 'queued'",
        building,
    )
    known = set(taken)
    return [row["id"] for row in rows if row["id"] not in known]


async def _take(
    connection: Connection, which: str, limit: int, named: Sequence[str] | Sequence[int] | None
) -> "list[asyncpg.Record]":
    rows: list[asyncpg.Record] = await connection.fetch(
        f"select id, kind, target, calldata, priority, requeued from relays where state = 'queued' and {which}"
        f" and not {_WAITS_FOR_OLDER} order by priority, id limit $1 for update skip locked",
        limit,
        named,
    )
    return rows


@attrs.frozen(slots=True)
class Ending:
    """End of a queued relay: refused by the chain (with name or raw data) or dropped with a code."""

    id: int
    state: str
    reason: str | None
    raw: bytes | None = None


async def end(connection: Connection, endings: Iterable[Ending]) -> None:
    """End queued relays and notify their callers. Relays that are no longer queued are left alone."""
    ends = list(endings)
    if ends:
        await connection.execute(
            "with ended as (update relays set state = e.state::relay_state, reason = e.reason, raw = e.raw,"
            " ended_at = clock_timestamp()"
            " from unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[]) as e(id, state, reason, raw)"
            " where relays.id = e.id and relays.state = 'queued' returning relays.id)"
            " select count(pg_notify('outbox_moved', 'ended ' || id)) from ended",
            *columns(ends, "id", "state", "reason", "raw"),
        )


async def drop_overdue(connection: Connection, timeout_ms: int) -> dict[int, RelayKind]:
    """Drop relays that exceeded the queue timeout. Return their kinds by id.

    Exits stay, because a client's money waits for them. Requeued relays stay, because their bytes were sent and callers
    may know them as mined. Relays locked for signing are left to that transaction.
    """
    rows = await connection.fetch(
        "with overdue as (select id from relays where state = 'queued' and requeued = 0 and priority > 0"
        " and queued_at < clock_timestamp() - $1 * interval '1 millisecond'"
        " and coalesce(held_until < clock_timestamp(), true) for update skip locked),"
        " dropped as (update relays set state = 'dropped', reason = 'relay_queue_timeout',"
        " ended_at = clock_timestamp() from overdue where relays.id = overdue.id returning relays.id, relays.kind)"
        " select id, kind, pg_notify('outbox_moved', 'ended ' || id) from dropped",
        timeout_ms,
    )
    return {r["id"]: RelayKind(r["kind"]) for r in rows}


async def mark_signed(
    connection: Connection, relay_ids: Sequence[int], tx_ids: Sequence[int], call_indexes: Sequence[int | None]
) -> None:
    """Bind taken relays to the transactions that carry them."""
    await connection.execute(
        "update relays set state = 'signed', tx_id = s.tx_id, call_index = s.call_index"
        " from unnest($1::bigint[], $2::bigint[], $3::integer[]) as s(id, tx_id, call_index)"
        " where relays.id = s.id",
        relay_ids,
        tx_ids,
        call_indexes,
    )


async def queue_lengths(connection: Connection) -> tuple[dict[int, int], float]:
    """Return the number of waiting relays by priority, and the age of the oldest in seconds."""
    rows = await connection.fetch(
        "select priority, count(*) as waiting,"
        " extract(epoch from clock_timestamp() - min(queued_at))::float8 as age"
        " from relays where state = 'queued' group by priority"
    )
    return {r["priority"]: r["waiting"] for r in rows}, max((r["age"] for r in rows), default=0.0)
