"""Relay transactions: one nonce of one account each, with every version ever signed for it.

Only the holder of the account's role writes these rows, on the connection that carries the lock.
"""

from collections.abc import Sequence

import attrs

from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.storage.database.columns import to_columns
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class MinedTx:
    """Transaction found in a block. `mined_hash` names the mined version, which may be a self-transfer."""

    tx_id: int
    mined_hash: bytes
    block_number: int
    block_hash: bytes
    succeeded: bool
    gas_used: int = 0
    is_self_transfer: bool = False


async def read_next_nonce(connection: Connection, chain_id: int, account: bytes) -> int | None:
    """Return one above the highest assigned nonce, or None for a new account."""
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select max(nonce) + 1 from relay_txs where chain_id = $1 and account = $2", chain_id, account
    )


async def insert_transactions(connection: Connection, chain_id: int, account: bytes, txs: Sequence[PendingTx]) -> None:
    """Store new transactions with their first version each, and set their ids."""
    rows = await connection.fetch(
        "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose)"
        " select $1, $2, n.* from unnest($3::bigint[], $4::bytea[], $5::bytea[], $6::bigint[], $7::text[]) as n"
        " returning id, nonce",
        chain_id,
        account,
        *to_columns(txs, "nonce", "target", "calldata", "gas_limit"),
        ["fill" if tx.latest.is_self_transfer else "relay" for tx in txs],
    )
    id_of = {r["nonce"]: r["id"] for r in rows}
    for tx in txs:
        tx.id = id_of[tx.nonce]
    await add_versions(connection, [(tx.id, tx.latest) for tx in txs])


async def add_versions(connection: Connection, versions: Sequence[tuple[int, SignedVersion]]) -> None:
    """Store new versions by transaction id. Skip bytes that are stored already."""
    await connection.execute(
        "insert into relay_tx_versions (tx_id, hash, raw, max_fee, max_tip, fills)"
        " select * from unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::numeric[], $5::numeric[], $6::boolean[])"
        " on conflict do nothing",
        [tx_id for tx_id, _ in versions],
        *to_columns(
            [version for _, version in versions], "hash", "signed_bytes", "max_fee", "max_tip", "is_self_transfer"
        ),
    )


async def insert_foreign_nonces(connection: Connection, chain_id: int, account: bytes, nonces: range) -> None:
    """Store nonces that foreign transactions used before this deployment assigned the nonces."""
    await connection.execute(
        "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
        " select $1, $2, n, $2, ''::bytea, 0, 'foreign', true from generate_series($3::bigint, $4::bigint) as n",
        chain_id,
        account,
        nonces.start,
        nonces.stop - 1,
    )


async def find_unexplained_nonces(connection: Connection, chain_id: int, account: bytes, below: int) -> list[int]:
    """Return nonces under `below` that unknown transactions used in the last hour."""
    rows = await connection.fetch(
        "select nonce from relay_txs where chain_id = $1 and account = $2 and nonce < $3 and lost"
        " and purpose = 'foreign' and created_at > now() - interval '1 hour' order by nonce",
        chain_id,
        account,
        below,
    )
    return [row["nonce"] for row in rows]


async def adopt_transaction(connection: Connection, chain_id: int, account: bytes, tx: PendingTx) -> None:
    """Turn the row of a used nonce into this transaction, which was found in a block, and set `tx.id`. A lost row stays
    lost until the receipt is read."""
    tx.id = await connection.fetchval(
        "update relay_txs set target = $4, calldata = $5, gas = $6, purpose = 'relay'"
        " where chain_id = $1 and account = $2 and nonce = $3 returning id",
        *(chain_id, account, tx.nonce, tx.target, tx.calldata, tx.gas_limit),
    )
    await add_versions(connection, [(tx.id, tx.latest)])


async def turn_into_self_transfer(connection: Connection, self_transfer: PendingTx) -> None:
    """Turn a lost nonce, which a reorg freed, into a self-transfer."""
    await connection.execute(
        "update relay_txs set lost = false, purpose = 'fill', gas = $2 where id = $1",
        self_transfer.id,
        self_transfer.gas_limit,
    )
    await add_versions(connection, [(self_transfer.id, self_transfer.latest)])


async def read_pending(connection: Connection, chain_id: int, account: bytes) -> list[PendingTx]:
    """Return the transactions whose nonces are not known to be used, in nonce order."""
    return await _read_stored_txs(connection, chain_id, account, "t.block_number is null and not t.lost")


async def read_lost(connection: Connection, chain_id: int, account: bytes) -> list[PendingTx]:
    """Return the transactions of the last hour that lost their nonce to a foreign transaction. A reorg may revive
    them."""
    return await _read_stored_txs(connection, chain_id, account, "t.lost and t.created_at > now() - interval '1 hour'")


async def _read_stored_txs(connection: Connection, chain_id: int, account: bytes, condition: str) -> list[PendingTx]:
    rows = await connection.fetch(
        "select t.id, t.nonce, t.target, t.gas, t.calldata, t.refusal, v.hash, v.raw, v.max_fee, v.max_tip, v.fills"
        " from relay_txs t join relay_tx_versions v on v.tx_id = t.id"
        f" where t.chain_id = $1 and t.account = $2 and {condition}"
        " order by t.nonce, v.created_at",
        chain_id,
        account,
    )
    txs: dict[int, PendingTx] = {}
    for r in rows:
        version = SignedVersion(r["hash"], r["raw"], int(r["max_fee"]), int(r["max_tip"]), r["fills"])
        if r["id"] in txs:
            txs[r["id"]].versions.append(version)
        else:
            txs[r["id"]] = PendingTx(
                r["id"], r["nonce"], r["target"], r["gas"], [version], r["calldata"], refusal_code=r["refusal"]
            )
    return list(txs.values())


async def record_mined(connection: Connection, txs: Sequence[MinedTx]) -> None:
    await connection.execute(
        "update relay_txs set mined_hash = m.hash, block_number = m.number, block_hash = m.block,"
        " succeeded = m.succeeded, lost = false"
        " from unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::boolean[])"
        " as m(id, hash, number, block, succeeded) where relay_txs.id = m.id",
        *to_columns(txs, "tx_id", "mined_hash", "block_number", "block_hash", "succeeded"),
    )


async def find_nonce_gaps(
    connection: Connection, chain_id: int, account: bytes, nonces: Sequence[int]
) -> list[tuple[int, int | None]]:
    """Return the nonces that are lost or were never stored, with the ids of their lost transactions. Mined nonces are
    not gaps, even if a node reports otherwise."""
    rows = await connection.fetch(
        "select n.nonce, t.id from unnest($3::bigint[]) as n(nonce)"
        " left join relay_txs t on t.chain_id = $1 and t.account = $2 and t.nonce = n.nonce"
        " where t.id is null or t.lost order by n.nonce",
        chain_id,
        account,
        nonces,
    )
    return [(row["nonce"], row["id"]) for row in rows]


async def find_blocks_of_nonces(
    connection: Connection, chain_id: int, account: bytes, nonces: Sequence[int]
) -> list[tuple[int, bytes]]:
    """Return number and hash of each block in which transactions with these nonces were mined."""
    rows = await connection.fetch(
        "select distinct block_number, block_hash from relay_txs where chain_id = $1 and account = $2"
        " and nonce = any($3::bigint[]) and block_number is not null order by block_number",
        chain_id,
        account,
        nonces,
    )
    return [(r["block_number"], r["block_hash"]) for r in rows]


async def mark_sent(connection: Connection, txs: Sequence[tuple[int, str | None, bool]]) -> None:
    """Store (transaction id, code, accepted) after a broadcast. The code says why no node has the transaction, or is
    None when a node may have it."""
    await connection.execute(
        "update relay_txs set refusal = r.code,"
        " broadcast_at = case when r.accepted then clock_timestamp() else broadcast_at end"
        " from unnest($1::bigint[], $2::text[], $3::boolean[]) as r(id, code, accepted) where relay_txs.id = r.id",
        *(list(column) for column in zip(*txs, strict=True)),
    )


@attrs.frozen(slots=True)
class AccountUsage:
    """Account, with the number of its pending transactions, and the seconds since its last signature (`idle_s`)."""

    account: bytes
    pending_count: int
    idle_s: float


async def read_account_usages(connection: Connection, chain_id: int) -> list[AccountUsage]:
    """Return every account that this deployment ever signed for, the most recently used first. The query reads only the
    index."""
    rows = await connection.fetch(
        "with recursive known (account) as ("
        "(select account from relay_txs where chain_id = $1 order by account limit 1) union all"
        " (select (select account from relay_txs where chain_id = $1 and account > k.account order by account limit 1)"
        " from known k where k.account is not null))"
        " select k.account, (select count(*) from relay_txs t where t.account = k.account"
        " and t.chain_id = $1 and t.block_number is null and not t.lost), l.quiet"
        " from known k, lateral (select extract(epoch from clock_timestamp() - created_at)::float8 as quiet"
        " from relay_txs t where t.chain_id = $1 and t.account = k.account order by nonce desc limit 1) l"
        " where k.account is not null order by l.quiet",
        chain_id,
    )
    return [AccountUsage(*row) for row in rows]


async def read_newest_blocks(connection: Connection, chain_id: int, window: int) -> list[tuple[int, bytes]]:
    """Return number and hash of each account's newest block, if it is within `window` blocks of the newest such block
    of all accounts. Skip accounts that broadcast nothing in ten minutes: such an account may be retired, and then no
    process notices its reorgs."""
    rows = await connection.fetch(
        "select distinct on (account) block_number, block_hash from relay_txs where chain_id = $1"
        " and coalesce(broadcast_at > clock_timestamp() - interval '10 minutes', true)"
        " and block_number > (select max(block_number) - $2 from relay_txs) order by account, block_number desc",
        chain_id,
        window,
    )
    return [(row["block_number"], row["block_hash"]) for row in rows]


async def read_mined_blocks(
    connection: Connection, chain_id: int, account: bytes, from_block: int
) -> list[tuple[int, bytes]]:
    """Return number and hash of each block with transactions of the account, from `from_block` on."""
    # Grouping follows the order of the index. For distinct pairs, PostgreSQL before 16 would sort all rows.
    rows = await connection.fetch(
        "select block_number, array_agg(distinct block_hash) as hashes from relay_txs"
        " where chain_id = $1 and account = $2 and block_number >= $3 group by block_number order by block_number",
        chain_id,
        account,
        from_block,
    )
    return [(r["block_number"], block_hash) for r in rows for block_hash in r["hashes"]]
