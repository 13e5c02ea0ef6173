"""Relay transactions: one nonce of one account each, with every version ever signed for it.

All of this is written by the holder of the account's role, on the connection that carries its lock.
"""

from collections.abc import Sequence

import attrs

from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class Version:
    """Signed bytes for a nonce. `fills`: a self-transfer that carries no relay."""

    hash: bytes
    raw: bytes = attrs.field(repr=False)
    max_fee: int
    max_tip: int
    fills: bool


@attrs.frozen(slots=True)
class NewTx:
    nonce: int
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    priority: int
    purpose: str
    version: Version


@attrs.frozen(slots=True)
class StoredTx:
    """A transaction whose nonce is not known to be used yet; versions oldest first. `refusal`: code of the answer by
    which nodes refused every sending of it so far."""

    id: int
    nonce: int
    target: bytes
    gas: int
    versions: tuple[Version, ...]
    refusal: str | None = None


async def next_nonce(connection: Connection, chain_id: int, account: bytes) -> int | None:
    """One above the highest nonce ever given out, or None when none was."""
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select max(nonce) + 1 from relay_txs where chain_id = $1 and account = $2", chain_id, account
    )


async def insert(connection: Connection, chain_id: int, account: bytes, txs: Sequence[NewTx]) -> list[int]:
    """Store transactions with their first version each; their ids, in order."""
    rows = await connection.fetch(
        "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, priority, purpose)"
        " select $1, $2, n.* from unnest($3::bigint[], $4::bytea[], $5::bytea[], $6::bigint[], $7::smallint[],"
        " $8::text[]) as n returning id, nonce",
        chain_id,
        account,
        [tx.nonce for tx in txs],
        [tx.target for tx in txs],
        [tx.calldata for tx in txs],
        [tx.gas for tx in txs],
        [tx.priority for tx in txs],
        [tx.purpose for tx in txs],
    )
    id_of = {r["nonce"]: r["id"] for r in rows}
    ids = [id_of[tx.nonce] for tx in txs]
    await add_versions(connection, list(zip(ids, [tx.version for tx in txs], strict=True)))
    return ids


async def add_versions(connection: Connection, versions: Sequence[tuple[int, Version]]) -> None:
    """(transaction id, its new version) each. The same bytes signed again are no new version."""
    await connection.execute(
        "insert into relay_tx_versions (tx_id, hash, raw, max_fee, max_tip, fills)"
        " select * from unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::numeric[], $5::numeric[], $6::boolean[])"
        " on conflict do nothing",
        [tx_id for tx_id, _ in versions],
        [version.hash for _, version in versions],
        [version.raw for _, version in versions],
        [version.max_fee for _, version in versions],
        [version.max_tip for _, version in versions],
        [version.fills for _, version in versions],
    )


async def insert_foreign(connection: Connection, chain_id: int, account: bytes, nonces: range) -> None:
    """Nonces that somebody else used before they were given out here."""
    await connection.execute(
        "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, priority, purpose, lost)"
        " select $1, $2, n, $2, ''::bytea, 0, 0, 'foreign', true from generate_series($3::bigint, $4::bigint) as n",
        chain_id,
        account,
        nonces.start,
        nonces.stop - 1,
    )


async def unexplained(connection: Connection, chain_id: int, account: bytes, below: int) -> list[int]:
    """Nonces below `below` that were used, of late, by bytes that this database does not know."""
    rows = await connection.fetch(
        "select nonce from relay_txs where chain_id = $1 and account = $2 and nonce < $3 and lost"
        " and purpose = 'foreign' and created_at > now() - interval '1 hour' order by nonce",
        chain_id,
        account,
        below,
    )
    return [row["nonce"] for row in rows]


async def adopt(connection: Connection, chain_id: int, account: bytes, tx: NewTx) -> int:
    """Store the bytes that used a nonce after all as the account's own. Return the transaction's id. It stays lost
    until its receipt is read."""
    tx_id: int = await connection.fetchval(
        "update relay_txs set target = $4, calldata = $5, gas = $6, priority = $7, purpose = 'relay'"
        " where chain_id = $1 and account = $2 and nonce = $3 returning id",
        *(chain_id, account, tx.nonce, tx.target, tx.calldata, tx.gas, tx.priority),
    )
    await add_versions(connection, [(tx_id, tx.version)])
    return tx_id


async def turn_into_fill(connection: Connection, tx_id: int, gas: int, version: Version) -> None:
    """The chain gave a lost nonce back (a reorg): a self-transfer takes it."""
    await connection.execute("update relay_txs set lost = false, purpose = 'fill', gas = $2 where id = $1", tx_id, gas)
    await add_versions(connection, [(tx_id, version)])


async def pending(connection: Connection, chain_id: int, account: bytes) -> list[StoredTx]:
    """All transactions whose nonce is not known to be used, in nonce order."""
    return await _stored(connection, chain_id, account, "t.block_number is null and not t.lost")


async def lost(connection: Connection, chain_id: int, account: bytes) -> list[StoredTx]:
    """Those of late whose nonce somebody else used: a reorganisation may bring them back."""
    return await _stored(connection, chain_id, account, "t.lost and t.created_at > now() - interval '1 hour'")


async def _stored(connection: Connection, chain_id: int, account: bytes, which: str) -> list[StoredTx]:
    rows = await connection.fetch(
        "select t.id, t.nonce, t.target, t.gas, t.refusal, v.hash, v.raw, v.max_fee, v.max_tip, v.fills"
        " from relay_txs t join relay_tx_versions v on v.tx_id = t.id"
        f" where t.chain_id = $1 and t.account = $2 and {which}"
        " order by t.nonce, v.created_at",
        chain_id,
        account,
    )
    versions: dict[int, list[Version]] = {}
    for r in rows:
        version = Version(r["hash"], r["raw"], int(r["max_fee"]), int(r["max_tip"]), r["fills"])
        versions.setdefault(r["id"], []).append(version)
    heads = {r["id"]: r for r in rows}
    return [
        StoredTx(tx_id, r["nonce"], r["target"], r["gas"], tuple(versions[tx_id]), r["refusal"])
        for tx_id, r in heads.items()
    ]


@attrs.frozen(slots=True)
class Content:
    """Target and calldata that a replacement has to carry again."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)


async def contents(connection: Connection, tx_ids: Sequence[int]) -> dict[int, Content]:
    rows = await connection.fetch("select id, target, calldata from relay_txs where id = any($1::bigint[])", tx_ids)
    return {r["id"]: Content(r["target"], r["calldata"]) for r in rows}


@attrs.frozen(slots=True)
class Gap:
    """A nonce without a live transaction; `lost_id` when a row of it exists, lost to somebody else."""

    nonce: int
    lost_id: int | None


async def gaps_among(connection: Connection, chain_id: int, account: bytes, nonces: Sequence[int]) -> list[Gap]:
    """Those of `nonces` that are lost or were never stored; mined ones are no gap, whatever a node says."""
    rows = await connection.fetch(
        "select n.nonce, t.id from unnest($3::bigint[]) as n(nonce)"
        " left join relay_txs t on t.chain_id = $1 and t.account = $2 and t.nonce = n.nonce"
        " where t.id is null or t.lost order by n.nonce",
        chain_id,
        account,
        nonces,
    )
    return [Gap(r["nonce"], r["id"]) for r in rows]


async def blocks_among(
    connection: Connection, chain_id: int, account: bytes, nonces: Sequence[int]
) -> list[tuple[int, bytes]]:
    """(number, hash) of each block that those of `nonces` are recorded in which were mined."""
    rows = await connection.fetch(
        "select distinct block_number, block_hash from relay_txs where chain_id = $1 and account = $2"
        " and nonce = any($3::bigint[]) and block_number is not null order by block_number",
        chain_id,
        account,
        nonces,
    )
    return [(r["block_number"], r["block_hash"]) for r in rows]


async def mark_broadcast(connection: Connection, tx_ids: Sequence[int]) -> None:
    await connection.execute(
        "update relay_txs set broadcast_at = clock_timestamp() where id = any($1::bigint[])", tx_ids
    )


async def mark_refused(connection: Connection, refusals: Sequence[tuple[int, str | None]]) -> None:
    """Store (transaction id, code): why no node has it, or None when a node may have it."""
    if refusals:
        await connection.execute(
            "update relay_txs set refusal = r.code from unnest($1::bigint[], $2::text[]) as r(id, code)"
            " where relay_txs.id = r.id",
            [tx_id for tx_id, _ in refusals],
            [code for _, code in refusals],
        )


@attrs.frozen(slots=True)
class AccountUse:
    """`pending`: its transactions that are neither mined nor lost. `quiet`: seconds since the last one was signed."""

    account: bytes
    pending: int
    quiet: float


async def account_uses(connection: Connection, chain_id: int) -> list[AccountUse]:
    """Every account that this deployment ever signed for, the latest first; by index, however many transactions."""
    rows = await connection.fetch(
        "with recursive known (account) as ("
        "(select account from relay_txs where chain_id = $1 order by account limit 1) union all"
        " (select (select account from relay_txs where chain_id = $1 and account > k.account order by account limit 1)"
        " from known k where k.account is not null))"
        " select k.account, l.quiet, (select count(*) from relay_txs t where t.account = k.account"
        " and t.chain_id = $1 and t.block_number is null and not t.lost) as pending"
        " from known k, lateral (select extract(epoch from clock_timestamp() - created_at)::float8 as quiet"
        " from relay_txs t where t.chain_id = $1 and t.account = k.account order by nonce desc limit 1) l"
        " where k.account is not null order by l.quiet",
        chain_id,
    )
    return [AccountUse(r["account"], r["pending"], r["quiet"]) for r in rows]


@attrs.frozen(slots=True)
class NewestBlock:
    """The last block that an account knows transactions of its own in; `quiet`: seconds since it sent any."""

    account: bytes
    number: int
    hash: bytes
    quiet: float


async def newest_blocks(connection: Connection, chain_id: int, window: int) -> list[NewestBlock]:
    """Of each account of the deployment, unless it is more than `window` blocks below the last of all."""
    rows = await connection.fetch(
        "select distinct on (account) account, block_number, block_hash,"
        " coalesce(extract(epoch from clock_timestamp() - broadcast_at), 0)::float8 as quiet"
        " from relay_txs where chain_id = $1"
        " and block_number > (select max(block_number) - $2 from relay_txs) order by account, block_number desc",
        chain_id,
        window,
    )
    return [NewestBlock(r["account"], r["block_number"], r["block_hash"], r["quiet"]) for r in rows]


async def mined_blocks(
    connection: Connection, chain_id: int, account: bytes, from_block: int
) -> list[tuple[int, bytes]]:
    """(number, hash) of each block that holds our transactions, from `from_block` on."""
    # Groups come in the order of the index. Distinct pairs would be sorted as a whole by PostgreSQL before 16.
    rows = await connection.fetch(
        "select block_number, array_agg(distinct block_hash) as hashes from relay_txs"
        " where chain_id = $1 and account = $2 and block_number >= $3 group by block_number order by block_number",
        chain_id,
        account,
        from_block,
    )
    return [(r["block_number"], block_hash) for r in rows for block_hash in r["hashes"]]
