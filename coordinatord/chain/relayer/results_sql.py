"""Results of signed relays: mined, refused, back in the queue, or alive again after a reorg."""

from collections.abc import Sequence

import attrs

from coordinatord.chain.relayer import gas_bookings_sql
from coordinatord.chain.relayer.outbox_sql import MAX_REQUEUES, RelayKind, lock_outbox
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class MinedTx:
    """A transaction found in a block, by the version that got there."""

    tx_id: int
    mined_hash: bytes
    block_number: int
    block_hash: bytes
    succeeded: bool


@attrs.frozen(slots=True)
class RefusedCall:
    """One relay of a mined transaction that the chain refused. `call_index` is None for a whole transaction."""

    tx_id: int
    call_index: int | None
    name: str | None
    raw: bytes | None


@attrs.frozen(slots=True)
class Carried:
    """A relay that rides in a transaction."""

    id: int
    tx_id: int
    call_index: int | None
    target: bytes
    calldata: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Ended:
    kind: RelayKind
    state: str
    seconds: float  # since it was inserted


async def record_mined(connection: Connection, txs: Sequence[MinedTx]) -> None:
    await connection.execute(
        "update relay_txs set mined_hash = m.hash, block_number = m.number, block_hash = m.block,"
        " succeeded = m.succeeded, lost = false"
        " from unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::boolean[])"
        " as m(id, hash, number, block, succeeded) where relay_txs.id = m.id",
        [tx.tx_id for tx in txs],
        [tx.mined_hash for tx in txs],
        [tx.block_number for tx in txs],
        [tx.block_hash for tx in txs],
        [tx.succeeded for tx in txs],
    )


async def carried(connection: Connection, tx_ids: Sequence[int]) -> list[Carried]:
    rows = await connection.fetch(
        "select id, tx_id, call_index, target, calldata from relays where tx_id = any($1::bigint[]) order by id", tx_ids
    )
    return [Carried(r["id"], r["tx_id"], r["call_index"], r["target"], r["calldata"]) for r in rows]


async def take_back(connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]) -> set[int]:
    """Bind relays anew to these transactions, which carried them before they came back to the queue and took effect
    after all; returns the relays' ids. What carries them by now carries nothing any more."""
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
        [call.tx_id for call in refused],
        [call.call_index for call in refused],
    )
    return {r["id"] for r in rows}


async def end_carried(connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]) -> list[Ended]:
    """End every relay of these transactions: those named in `refused` so, all others as mined.

    Also those that ended before and came to be decided anew by a reorg.
    """
    rows = await connection.fetch(
        "with ended as (update relays set"
        " state = case when f.tx_id is null then 'mined' else 'refused' end::relay_state,"
        " reason = f.name, raw = f.raw, ended_at = clock_timestamp(), mined_block = t.block_number"
        " from relays as r join relay_txs t on t.id = r.tx_id"
        " left join unnest($2::bigint[], $3::integer[], $4::text[], $5::bytea[]) as f(tx_id, call_index, name, raw)"
        " on f.tx_id = r.tx_id and f.call_index is not distinct from r.call_index"
        " where r.tx_id = any($1::bigint[]) and relays.id = r.id"
        " returning relays.id, relays.kind, relays.state::text as state, relays.created_at)"
        " select kind, state, extract(epoch from clock_timestamp() - created_at)::float8 as seconds,"
        " pg_notify('relay_ended', id::text) from ended",
        tx_ids,
        [call.tx_id for call in refused],
        [call.call_index for call in refused],
        [call.name for call in refused],
        [call.raw for call in refused],
    )
    return [Ended(RelayKind(r["kind"]), r["state"], r["seconds"]) for r in rows]


@attrs.frozen(slots=True)
class RefusedRelay:
    id: int
    kind: RelayKind
    target: bytes
    calldata: bytes = attrs.field(repr=False)


async def refused_alive(connection: Connection, refused: Sequence[RefusedCall]) -> list[RefusedRelay]:
    """Those of the refused that have not ended otherwise before."""
    rows = await connection.fetch(
        "select r.id, r.kind, r.target, r.calldata from relays r"
        " join unnest($1::bigint[], $2::integer[]) as f(tx_id, call_index)"
        " on f.tx_id = r.tx_id and f.call_index is not distinct from r.call_index"
        " where r.state = 'signed' order by r.id",
        [call.tx_id for call in refused],
        [call.call_index for call in refused],
    )
    return [RefusedRelay(r["id"], RelayKind(r["kind"]), r["target"], r["calldata"]) for r in rows]


async def behind_undecided(connection: Connection, relay_ids: Sequence[int]) -> set[int]:
    """Those of these relays that have an older one of their subject under way."""
    rows = await connection.fetch(
        "select r.id from relays r where r.id = any($1::bigint[]) and exists (select from relays o"
        " where o.subject = r.subject and o.id < r.id and o.state in ('queued', 'signed'))",
        relay_ids,
    )
    return {r["id"] for r in rows}


async def post_under_way(connection: Connection, job_id: bytes, owner: bytes) -> bool:
    found: bool = await connection.fetchval(
        "select exists(select from relays where subject = $1 and signer = $2 and kind = 'post'"
        " and state in ('queued', 'signed'))",
        job_id,
        owner,
    )
    return found


@attrs.frozen(slots=True)
class Undecided:
    """A queued or signed relay. `ahead`: the account has signed it and its nonce is still to be used, so that whatever
    it signs next comes after it."""

    id: int
    subject: bytes
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    ahead: bool


async def undecided_with(
    connection: Connection, chain_id: int, account: bytes, relay_ids: Sequence[int]
) -> list[Undecided]:
    """All that is under way of the subjects of these relays, the oldest first."""
    rows = await connection.fetch(
        "select r.id, r.subject, r.target, r.calldata, (t.id is not null and not t.lost and t.block_number is null"
        " and not exists (select from relay_tx_versions v where v.tx_id = t.id and v.fills)) as ahead"
        " from relays r left join relay_txs t on t.id = r.tx_id and t.chain_id = $1 and t.account = $2"
        " where r.state in ('queued', 'signed')"
        " and r.subject in (select subject from relays where id = any($3::bigint[])) order by r.id",
        chain_id,
        account,
        relay_ids,
    )
    return [Undecided(r["id"], r["subject"], r["target"], r["calldata"], r["ahead"]) for r in rows]


async def requeue(connection: Connection, relay_ids: Sequence[int], code: str) -> None:
    """Put signed relays, whose transaction can take no effect any more, back into the queue.

    One that came back too often is dropped with `code`; so is one that is not live (it ended, a reorg unmade its
    block, and the same request is under way anew).
    """
    await _remember(connection, relay_ids)
    await connection.execute(
        "with back as (update relays set tx_id = null, call_index = null, raw = null,"
        " state = case when again then 'queued' else 'dropped' end::relay_state,"
        " reason = case when again then null else $3 end,"
        " ended_at = case when again then null else clock_timestamp() end,"
        " requeued = requeued + 1, queued_at = clock_timestamp()"
        " from (select id as back_id, state = 'signed' and requeued < $2 as again from relays"
        " where id = any($1::bigint[])) as chosen where id = back_id returning id, state)"
        " select count(case when state = 'queued' then pg_notify('relay_queued', '')"
        " else pg_notify('relay_ended', id::text) end) from back",
        relay_ids,
        MAX_REQUEUES,
        code,
    )


async def _remember(connection: Connection, relay_ids: Sequence[int]) -> None:
    """Keep the transactions that carry these relays now: sent once, they may take effect although others carry them
    later."""
    await connection.execute(
        "insert into relay_formers (relay_id, tx_id, call_index) select id, tx_id, call_index from relays"
        " where id = any($1::bigint[]) and tx_id is not null on conflict do nothing",
        relay_ids,
    )


async def carried_by(
    connection: Connection, tx_id: int, target: bytes, calls: Sequence[tuple[bytes, int | None]]
) -> int:
    """Bind live relays to a transaction that turns out to carry them: (calldata, place in `relay`) each. Return their
    number. They end with its receipt."""
    bound: int = await connection.fetchval(
        "with bound as (insert into relay_formers (relay_id, tx_id, call_index) select r.id, $1, c.place"
        " from unnest($3::bytea[], $4::integer[]) as c(calldata, place)"
        " join relays r on r.calldata = c.calldata and r.target = $2 and r.state in ('queued', 'signed')"
        " on conflict do nothing returning relay_id) select count(*) from bound",
        tx_id,
        target,
        [calldata for calldata, _ in calls],
        [place for _, place in calls],
    )
    return bound


async def mark_lost(connection: Connection, tx_ids: Sequence[int]) -> None:
    """Somebody else's transaction used these nonces; the relays go back to the queue, to be simulated anew."""
    await connection.execute("update relay_txs set lost = true where id = any($1::bigint[])", tx_ids)
    await requeue(connection, [relay.id for relay in await carried(connection, tx_ids)], "nonce_conflict")


async def unmine(connection: Connection, chain_id: int, account: bytes, block_hashes: Sequence[bytes]) -> int:
    """These blocks are not part of the chain any more: their transactions are pending again. Returns how many.

    Their relays live again, except where the same request is under way anew or twice among them: such a relay keeps
    its ending until its transaction is mined again and decides.
    """
    await lock_outbox(connection)
    rows = await connection.fetch(
        "update relay_txs set mined_hash = null, block_number = null, block_hash = null, succeeded = null"
        " where chain_id = $1 and account = $2 and block_hash = any($3::bytea[]) returning id",
        chain_id,
        account,
        block_hashes,
    )
    await gas_bookings_sql.unbook(connection, [r["id"] for r in rows])
    await connection.execute(
        "update relays set state = 'signed', reason = null, raw = null, ended_at = null where id in ("
        " select min(r.id) from relays r where r.tx_id = any($1::bigint[]) and r.state in ('mined', 'refused')"
        " and not exists (select 1 from relays o where o.dedupe = r.dedupe and o.state in ('queued', 'signed'))"
        " group by r.dedupe)",
        [r["id"] for r in rows],
    )
    return len(rows)
