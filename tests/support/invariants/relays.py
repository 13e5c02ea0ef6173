"""I1–I3 as queries: invariants of the outbox and the chain after any run, with any faults.

violations = await relay_violations(connection, chain, stuck_after=600)
assert violations == []
"""

from collections.abc import Mapping
from typing import Final

import asyncpg

from coordinatord.chain.rpc.client import Rpc, decode_quantity

_STUCK: Final = (
    "select 'I1: relay ' || id || ' (' || kind || ') is ' || state || ' since ' || created_at from relays"
    " where state in ('queued', 'signed') and created_at < clock_timestamp() - $1 * interval '1 second'"
)
_ENDED_WITHOUT_REASON: Final = (
    "select 'I1: relay ' || r.id || ' is mined in a transaction that is not' from relays r"
    " left join relay_txs t on t.id = r.tx_id where r.state = 'mined' and t.block_number is null"
)
# At most one relay per request took effect. Duplicates joined that relay, or came later and were rejected.
_DOUBLED: Final = (
    "select 'I2: request ' || encode(dedupe, 'hex') || ' (' || kind || ') was mined ' || count(*) || ' times'"
    " from relays where state = 'mined' group by kind, dedupe having count(*) > 1"
)
_TWO_TRANSACTIONS: Final = (
    "select 'I2: relay ' || id || ' is signed without a transaction' from relays"
    " where state = 'signed' and tx_id is null"
)
# The janitor deletes old transactions at random positions. From the newest undeletable row on, no nonce may be missing.
_GAPS: Final = (
    "with young as (select t.*, coalesce(max(nonce) filter (where created_at < clock_timestamp() - interval '7 days')"
    " over (partition by chain_id, account), 0) as floor from relay_txs t)"
    " select 'I3: account ' || encode(account, 'hex') || ' has ' || count(*) || ' transactions for nonces '"
    " || min(nonce) || '..' || max(nonce) from young where nonce >= floor group by chain_id, account"
    " having count(*) <> max(nonce) - min(nonce) + 1"
)
_WITHOUT_BYTES: Final = (
    "select 'I3: transaction ' || id || ' has no signed bytes' from relay_txs t where purpose <> 'foreign'"
    " and not exists (select 1 from relay_tx_versions v where v.tx_id = t.id)"
)
_ABOVE_THE_CHAIN: Final = (
    "select nonce, mined_hash from relay_txs where account = $1 and block_number >= $2 order by nonce"
)
_LOST: Final = (
    "select t.nonce, v.hash from relay_txs t join relay_tx_versions v on v.tx_id = t.id"
    " where t.account = $1 and t.lost order by t.nonce"
)


async def relay_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, *, stuck_after: float = 600, since_block: int = 0
) -> list[str]:
    """Return each violation as a sentence. `stuck_after`: seconds after which an unfinished relay is a violation.
    Transactions mined before `since_block` are not compared with the chain."""
    found = [row[0] for row in await connection.fetch(_STUCK, stuck_after)]
    for query in (_ENDED_WITHOUT_REASON, _DOUBLED, _TWO_TRANSACTIONS, _GAPS, _WITHOUT_BYTES):
        found += [row[0] for row in await connection.fetch(query)]
    for row in await connection.fetch("select distinct account from relay_txs"):
        found += await _chain_disagrees(connection, rpc, row["account"], since_block)
    return found


async def _chain_disagrees(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, account: bytes, since_block: int
) -> list[str]:
    """Check that each mined nonce of the outbox was used on the chain by the recorded transaction."""
    found = []
    for row in await connection.fetch(_LOST, account):
        if await rpc.call("eth_getTransactionReceipt", "0x" + row["hash"].hex()) is not None:
            found.append(f"I3: nonce {row['nonce']} is marked lost in the outbox, but its transaction is mined")
    used = decode_quantity(await rpc.call("eth_getTransactionCount", "0x" + account.hex(), "latest"))
    for row in await connection.fetch(_ABOVE_THE_CHAIN, account, since_block):
        if row["nonce"] >= used:
            found.append(f"I3: nonce {row['nonce']} is mined in the outbox, but the next nonce on the chain is {used}")
            continue
        there = await rpc.call("eth_getTransactionByHash", "0x" + row["mined_hash"].hex())
        if not isinstance(there, Mapping) or decode_quantity(there["nonce"]) != row["nonce"]:
            found.append(f"I3: nonce {row['nonce']} is mined in the outbox by a transaction that is not on the chain")
    return found
