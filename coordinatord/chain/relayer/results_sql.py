"""Results of signed relays: mined, refused, back in the queue, or alive again after a reorg."""

from collections.abc import Iterable, Sequence

import attrs

from coordinatord.chain.relayer import gas_bookings_sql
from coordinatord.chain.relayer.outbox_sql import MAX_REQUEUES, RelayKind, lock_outbox
from coordinatord.storage.database.columns import columns
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class RefusedCall:
    """One relay of a mined transaction that the chain refused. `call_index` is None for a whole transaction."""

    tx_id: int
    call_index: int | None
    name: str | None
    raw: bytes | None


@attrs.frozen(slots=True)
class CarriedRelay:
    """A relay in the transaction that carries it. `is_live`: it has not ended."""

    id: int
    kind: RelayKind = attrs.field(converter=RelayKind)
    tx_id: int
    call_index: int | None
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    is_live: bool = True


@attrs.frozen(slots=True)
class Ended:
    """Ended relay. `seconds` is the time since its insertion."""

    kind: RelayKind = attrs.field(converter=RelayKind)
    state: str
    seconds: float


async def carried(connection: Connection, tx_ids: Iterable[int]) -> list[CarriedRelay]:
    rows = await connection.fetch(
        "select id, kind, tx_id, call_index, target, calldata, state = 'signed' from relays"
        " where tx_id = any($1::bigint[]) order by id",
        list(tx_ids),
    )
    return [CarriedRelay(*row) for row in rows]


async def take_back(connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]) -> set[int]:
    """Bind relays to these transactions again, which carried them before they returned to the queue and took effect
    after all. Return the relays' ids. The transactions that carry them now have no effect."""
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
        *columns(refused, "tx_id", "call_index"),
    )
    return {row["id"] for row in rows}


async def end_carried(connection: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]) -> list[Ended]:
    """End every relay of these transactions: the relays of `refused` as refused, all others as mined. After a reorg,
    ended relays are decided again."""
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
        *columns(refused, "tx_id", "call_index", "name", "raw"),
    )
    return [Ended(*row[:3]) for row in rows]


async def behind_undecided(connection: Connection, relay_ids: Sequence[int]) -> set[int]:
    """Return the relays that have an older relay of their subject under way."""
    rows = await connection.fetch(
        "select r.id from relays r where r.id = any($1::bigint[]) and exists (select from relays o"
        " where o.subject = r.subject and o.id < r.id and o.state in ('queued', 'signed'))",
        relay_ids,
    )
    return {row["id"] for row in rows}


async def post_under_way(connection: Connection, job_id: bytes, owner: bytes) -> bool:
    found: bool = await connection.fetchval(
        "select exists(select from relays where subject = $1 and signer = $2 and kind = 'post'"
        " and state in ('queued', 'signed'))",
        job_id,
        owner,
    )
    return found


@attrs.frozen(slots=True)
class UndecidedRelay:
    """Queued or signed relay. `ahead` means that the account has signed it with an unused nonce, so that everything
    that the account signs next comes after it."""

    id: int
    kind: RelayKind = attrs.field(converter=RelayKind)
    subject: bytes
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    ahead: bool


async def undecided_with(
    connection: Connection, chain_id: int, account: bytes, relay_ids: Sequence[int]
) -> list[UndecidedRelay]:
    """Return the queued and signed relays that share a subject with these relays (which are included), oldest first."""
    rows = await connection.fetch(
        "select r.id, r.kind, r.subject, r.target, r.calldata, (t.id is not null and not t.lost"
        " and t.block_number is null"
        " and not exists (select from relay_tx_versions v where v.tx_id = t.id and v.fills)) as ahead"
        " from relays r left join relay_txs t on t.id = r.tx_id and t.chain_id = $1 and t.account = $2"
        " where r.state in ('queued', 'signed')"
        " and r.subject in (select subject from relays where id = any($3::bigint[])) order by r.id",
        chain_id,
        account,
        relay_ids,
    )
    return [UndecidedRelay(*row) for row in rows]


async def requeue(connection: Connection, relay_ids: Sequence[int], code: str) -> None:
    """Requeue signed relays after their transaction has become ineffective.

    Drop a relay with `code` if it was requeued too often. Also drop it if it had ended, a reorg removed its block, and
    the same request is under way again.

    Keep the transactions, because their bytes were sent and may still be mined.
    """
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
    """Record that foreign transactions used these nonces. The relays return to the queue, to be simulated again."""
    await connection.execute("update relay_txs set lost = true where id = any($1::bigint[])", tx_ids)
    await requeue(connection, [relay.id for relay in await carried(connection, tx_ids)], "nonce_conflict")


async def unmine(connection: Connection, chain_id: int, account: bytes, block_hashes: Sequence[bytes]) -> int:
    """Make the transactions of these blocks pending again, because a reorg removed the blocks. Return their number.

    Their relays live again, except where the same request is under way again or twice among them: such a relay keeps
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
