"""The outbox's queue on the relayer's side: the relays to sign next, and the relays that end unsigned."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import asyncpg
import attrs

from coordinatord.chain.relayer.outbox_sql import STORED_COLUMNS, RelayKind, StoredRelay
from coordinatord.storage.database.columns import to_columns
from coordinatord.storage.database.connections import Connection

# A requeued relay waits for older relays of its subject, because it builds on their effects. After a reorg, the older
# relays may be mined later, from another account.
_WAITS_FOR_OLDER: Final = (
    "(requeued > 0 and exists (select from relays o where o.subject = relays.subject and o.id < relays.id"
    " and o.state in ('queued', 'signed')))"
)
_DEPENDENT_KINDS: Final = frozenset({RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.CANCEL})


async def take_relays(
    connection: Connection, limit: int, batch_limit: int, kinds: Collection[RelayKind] = tuple(RelayKind)
) -> list[StoredRelay]:
    """Return the next relays of these kinds to sign: at most `limit`, of which at most `batch_limit` are posts of
    batches. The rows stay locked until the transaction ends. Skip relays that another account has locked and relays
    that wait for an older one.

    Also take, beyond the limits, the relays that these relays build on. Claims come before posts in the queue, so a
    claim and its post would otherwise never be taken together.
    """
    rows = await _select_relays(connection, "priority < 3 and kind = any($2::text[])", limit, kinds)
    if len(rows) < limit:
        count = min(limit - len(rows), batch_limit)
        rows += await _select_relays(connection, "priority = 3 and kind = any($2::text[])", count, kinds)
    dependents = [row["id"] for row in rows if row["kind"] in _DEPENDENT_KINDS]
    if dependents:
        known = {row["id"] for row in rows}
        older = [
            relay_id for relay_id in await _find_older_relays(connection, dependents, kinds) if relay_id not in known
        ]
        rows += await _select_relays(connection, "id = any($2::bigint[])", len(older), older) if older else []
    return [StoredRelay(*row) for row in rows]


async def count_active_accounts(connection: Connection, chain_id: int) -> int:
    """Return how many accounts of the chain signed the latest 64 transactions, at least 1."""
    accounts: int = await connection.fetchval(
        "select greatest(count(distinct account), 1) from"
        " (select account, chain_id from relay_txs order by id desc limit 64) as latest where chain_id = $1",
        chain_id,
    )
    return accounts


async def _find_older_relays(
    connection: Connection, dependents: Sequence[int], kinds: Collection[RelayKind]
) -> list[int]:
    """Return queued relays that the relays of `dependents` build on. This query is separate, because as part of
    `_select_relays` it would run for every row of a long queue."""
    rows = await connection.fetch(
        "with behind as materialized (select id, subject from relays where id = any($1::bigint[]))"
        " select distinct o.id from behind b join relays o on o.subject = b.subject and o.id < b.id"
        " and o.state = 'queued' and o.kind = any($2::text[])",
        dependents,
        kinds,
    )
    return [row["id"] for row in rows]


async def _select_relays(
    connection: Connection, condition: str, limit: int, values: Collection[str] | Collection[int]
) -> "list[asyncpg.Record]":
    rows: list[asyncpg.Record] = await connection.fetch(
        f"select {STORED_COLUMNS} from relays where state = 'queued' and {condition}"
        f" and not {_WAITS_FOR_OLDER} order by priority, id limit $1 for update skip locked",
        limit,
        values,
    )
    return rows


@attrs.frozen(slots=True)
class RelayEnding:
    """End of a queued relay: refused by the chain (with name or raw data) or dropped with a code."""

    id: int
    state: str
    reason: str | None
    raw: bytes | None = None


async def end_queued_relays(connection: Connection, endings: Iterable[RelayEnding]) -> None:
    """End queued relays and notify their callers. Relays that are no longer queued are left alone."""
    ends = list(endings)
    if ends:
        await connection.execute(
            "with ended as (update relays set state = e.state::relay_state, reason = e.reason, raw = e.raw,"
            " ended_at = clock_timestamp()"
            " from unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[]) as e(id, state, reason, raw)"
            " where relays.id = e.id and relays.state = 'queued' returning relays.id)"
            " select count(pg_notify('outbox_moved', 'ended ' || id)) from ended",
            *to_columns(ends, "id", "state", "reason", "raw"),
        )


async def drop_overdue_relays(connection: Connection, timeout_ms: int) -> dict[int, RelayKind]:
    """Drop relays that exceeded the queue timeout. Return their kinds by id. Keep exits. Also keep requeued relays,
    because their callers may have received a success. Skip relays that a signing transaction has locked."""
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


async def mark_signed(connection: Connection, bindings: Sequence[tuple[int, int, int | None]]) -> None:
    """Bind taken relays to the transactions that carry them. Each item of `bindings` is (relay id, transaction id, call
    index)."""
    await connection.execute(
        "update relays set state = 'signed', tx_id = s.tx_id, call_index = s.call_index"
        " from unnest($1::bigint[], $2::bigint[], $3::integer[]) as s(id, tx_id, call_index)"
        " where relays.id = s.id",
        *(list(column) for column in zip(*bindings, strict=True)),
    )


async def read_queue_lengths(connection: Connection) -> tuple[dict[int, int], float]:
    """Return the number of waiting relays by priority, and the age of the oldest in seconds."""
    rows = await connection.fetch(
        "select priority, count(*) as waiting,"
        " extract(epoch from clock_timestamp() - min(queued_at))::float8 as age"
        " from relays where state = 'queued' group by priority"
    )
    return {r["priority"]: r["waiting"] for r in rows}, max((r["age"] for r in rows), default=0.0)
