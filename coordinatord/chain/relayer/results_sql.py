"""Record the outcomes of signed relays: mined, refused, queued again, or pending again after a reorg."""

from collections.abc import Iterable, Sequence

import attrs

from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.outbox_sql import MAX_REQUEUES, STORED_COLUMNS, StoredRelay, lock_outbox
from coordinatord.storage.database.columns import to_columns
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class RefusedCall:
    """Relay that the chain refused although its transaction was mined. `call_index` is None if the relay was the whole
    transaction. `name` is the contract's error, and `raw` its data."""

    tx_id: int
    call_index: int | None
    name: str | None
    raw: bytes | None


async def read_carried_relays(connection: Connection, tx_ids: Iterable[int]) -> list[StoredRelay]:
    """Return the relays of these transactions, including ended ones."""
    rows = await connection.fetch(
        f"select {STORED_COLUMNS} from relays where tx_id = any($1::bigint[]) order by id", list(tx_ids)
    )
    return [StoredRelay(*row) for row in rows]


async def rebind_carried_relays(
    connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]
) -> set[int]:
    """Bind requeued relays back to these transactions, which carried the relays earlier and took effect after all.
    Newer transactions with the same relays have no effect. Skip relays that these transactions carried without effect
    (`refused`). Return the ids of the rebound relays."""
    rows = await connection.fetch(
        "with back as (select f.relay_id, f.tx_id, f.call_index, r.tx_id as by_now, r.call_index as place_by_now"
        " from relay_formers f join relays r on r.id = f.relay_id where f.tx_id = any($1::bigint[])"
        " and not exists (select from unnest($2::bigint[], $3::integer[]) as n(tx_id, call_index)"
        " where n.tx_id = f.tx_id and n.call_index is not distinct from f.call_index)),"
        " kept as (insert into relay_formers (relay_id, tx_id, call_index)"
        " select relay_id, by_now, place_by_now from back where by_now is not null on conflict do nothing),"
        " gone as (delete from relay_formers f using back b where f.relay_id = b.relay_id and f.tx_id = b.tx_id)"
        " update relays set tx_id = b.tx_id, call_index = b.call_index from back b where relays.id = b.relay_id"
        " returning relays.id",
        tx_ids,
        *to_columns(refused, "tx_id", "call_index"),
    )
    return {row["id"] for row in rows}


async def end_carried_relays(
    connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]
) -> list[tuple[str, str, float]]:
    """End every relay of these transactions: the relays of `refused` as refused, all others as mined. A relay that had
    ended before a reorg is ended again. Return the kind, the state and the seconds since the insertion of each
    relay."""
    rows = await connection.fetch(
        "with ended as (update relays set"
        " state = case when f.tx_id is null then 'mined' else 'refused' end::relay_state,"
        " reason = f.name, raw = f.raw, ended_at = clock_timestamp(), mined_block = t.block_number"
        " from relays as r join relay_txs t on t.id = r.tx_id"
        " left join unnest($2::bigint[], $3::integer[], $4::text[], $5::bytea[]) as f(tx_id, call_index, name, raw)"
        " on f.tx_id = r.tx_id and f.call_index is not distinct from r.call_index"
        " where r.tx_id = any($1::bigint[]) and relays.id = r.id"
        " returning relays.id, relays.kind, relays.state::text as state, relays.created_at)"
        " select kind, state, extract(epoch from clock_timestamp() - created_at)::float8,"
        " pg_notify('outbox_moved', 'ended ' || id) from ended",
        tx_ids,
        *to_columns(refused, "tx_id", "call_index", "name", "raw"),
    )
    return [(row[0], row[1], row[2]) for row in rows]


async def find_relays_behind_older(connection: Connection, relay_ids: Sequence[int]) -> set[int]:
    """Return the relays that are behind an older queued or signed relay of the same subject."""
    rows = await connection.fetch(
        "select r.id from relays r where r.id = any($1::bigint[]) and exists (select from relays o"
        " where o.subject = r.subject and o.id < r.id and o.state in ('queued', 'signed'))",
        relay_ids,
    )
    return {row["id"] for row in rows}


async def find_undecided_of_same_subjects(connection: Connection, relay_ids: Sequence[int]) -> list[StoredRelay]:
    """Return the queued and signed relays with the subjects of these relays, including these relays, oldest first."""
    rows = await connection.fetch(
        f"select {STORED_COLUMNS} from relays where state in ('queued', 'signed')"
        " and subject in (select subject from relays where id = any($1::bigint[])) order by id",
        relay_ids,
    )
    return [StoredRelay(*row) for row in rows]


async def requeue_relays(connection: Connection, relay_ids: Sequence[int], code: str) -> None:
    """Requeue signed relays whose transaction has become ineffective. Remember the transactions, which may still be
    mined. Drop a relay with `code` if it was requeued too often. Also drop a relay that has already ended: after a
    reorg, such a relay keeps its ending while an equal request is under way."""
    await connection.execute(
        "with kept as (insert into relay_formers (relay_id, tx_id, call_index) select id, tx_id, call_index from relays"
        "  where id = any($1::bigint[]) and tx_id is not null on conflict do nothing),"
        " back as (update relays set tx_id = null, call_index = null, raw = null,"
        " state = case when again then 'queued' else 'dropped' end::relay_state,"
        " reason = case when again then null else $3 end,"
        " ended_at = case when again then null else clock_timestamp() end,"
        " requeued = requeued + 1, queued_at = clock_timestamp()"
        " from (select id as back_id, state = 'signed' and requeued < $2 as again from relays"
        " where id = any($1::bigint[])) as chosen where id = back_id returning id, state)"
        " select count(case when state = 'queued' then pg_notify('outbox_moved', 'queued')"
        " else pg_notify('outbox_moved', 'ended ' || id) end) from back",
        relay_ids,
        MAX_REQUEUES,
        code,
    )


async def record_carried_relays(
    connection: Connection, tx_id: int, target: bytes, calls: Sequence[tuple[bytes, int | None]]
) -> None:
    """Record that a transaction carries queued or signed relays, so that its receipt ends them. Each item of `calls` is
    (calldata, position in `relay(bytes[])`)."""
    await connection.execute(
        "insert into relay_formers (relay_id, tx_id, call_index) select r.id, $1, c.place"
        " from unnest($3::bytea[], $4::integer[]) as c(calldata, place)"
        " join relays r on r.calldata = c.calldata and r.target = $2 and r.state in ('queued', 'signed')"
        " and r.tx_id is distinct from $1 on conflict do nothing",
        tx_id,
        target,
        [calldata for calldata, _ in calls],
        [place for _, place in calls],
    )


async def mark_lost(connection: Connection, tx_ids: Sequence[int]) -> None:
    """Record that foreign transactions used the nonces of these transactions. Requeue their relays, to be simulated
    again."""
    await connection.execute("update relay_txs set lost = true where id = any($1::bigint[])", tx_ids)
    await requeue_relays(
        connection, [relay.id for relay in await read_carried_relays(connection, tx_ids)], "nonce_conflict"
    )


async def unmine_blocks(connection: Connection, chain_id: int, account: bytes, block_hashes: Sequence[bytes]) -> int:
    """Make the transactions of these blocks pending again, because a reorg removed the blocks. Return the number of
    these transactions. Their relays become signed again, except that a relay keeps its ending while an equal request is
    under way."""
    await lock_outbox(connection)
    rows = await connection.fetch(
        "update relay_txs set mined_hash = null, block_number = null, block_hash = null, succeeded = null"
        " where chain_id = $1 and account = $2 and block_hash = any($3::bytea[]) returning id",
        chain_id,
        account,
        block_hashes,
    )
    await budgets_sql.remove_bookings(connection, [r["id"] for r in rows])
    await connection.execute(
        "update relays set state = 'signed', reason = null, raw = null, ended_at = null where id in ("
        " select min(r.id) from relays r where r.tx_id = any($1::bigint[]) and r.state in ('mined', 'refused')"
        " and not exists (select 1 from relays o where o.dedupe = r.dedupe and o.state in ('queued', 'signed'))"
        " group by r.dedupe)",
        [r["id"] for r in rows],
    )
    return len(rows)
