"""I3 from the chain's side: every transaction of a relayer account is in the outbox, at the recorded nonce.

violations = await nonce_violations(connection, rpc_url, deploy_block)
assert violations == []

`relays` checks the transactions of the outbox against the chain. Only this module finds transactions that the outbox
lacks.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import asyncpg
import attrs

from tests.support.invariants.market_log import Node, node_client

_BLOCKS_PER_READ: Final = 500
_OUTBOX: Final = (
    "select encode(account, 'hex') as account, nonce, purpose, lost, block_number, encode(block_hash, 'hex') as block,"
    " encode(mined_hash, 'hex') as mined,"
    " array(select encode(hash, 'hex') from relay_tx_versions v where v.tx_id = t.id) as versions from relay_txs t"
    " where block_number is null or block_number >= $1"
)


@attrs.frozen
class _Mined:
    hash: str
    block: str


async def nonce_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc_url: str, first_block: int, *, foreign: int | None = None
) -> list[str]:
    """Return each violation as a sentence. No block may be mined during the call, and no transaction may be pending.
    Earlier blocks than `first_block` are not read.

    `foreign`: the largest number of transactions that other programs sent from the accounts, or None when unknown. The
    number is the only way to distinguish a foreign transaction from one that the relayer sent before storing it.
    """
    outbox: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in await connection.fetch(_OUTBOX, first_block):
        outbox[row["account"]][row["nonce"]] = dict(row)
    mined = await _mined(rpc_url, first_block, set(outbox))
    found: list[str] = []
    others = 0
    for account, rows in outbox.items():
        oldest, newest = min(rows), max(rows)  # the janitor deletes old rows
        for nonce in sorted(nonce for nonce in rows.keys() | mined[account].keys() if nonce >= oldest):
            row, there = rows.get(nonce), mined[account].get(nonce)
            others += there is not None and (row is None or there.hash not in row["versions"])
            if nonce > newest:
                continue  # foreign for now: the outbox learns of this transaction when it assigns the next nonce
            if (wrong := _wrong(row, there)) is not None:
                found.append(f"I3: nonce {nonce} of {account} {wrong}")
    if foreign is not None and others > foreign:
        found.append(f"I3: {others} transactions are not in the outbox, but other programs sent {foreign}")
    return found


def _wrong(row: Mapping[str, Any] | None, there: _Mined | None) -> str | None:
    if row is None:
        return f"is used by 0x{there.hash}, which is not in the outbox" if there is not None else None
    if there is None:
        return (
            None if row["block_number"] is None else f"is mined in the outbox as 0x{row['mined']}, but not on the chain"
        )
    ours = there.hash in row["versions"]
    if row["purpose"] == "foreign" or row["lost"]:
        return f"is foreign in the outbox, but the outbox signed 0x{there.hash}" if ours else None
    if not ours:
        return f"is used by 0x{there.hash}, whose bytes are not in the outbox"
    if row["block_number"] is None:
        return f"is mined as 0x{there.hash}, and pending in the outbox"
    if (row["mined"], row["block"]) != (there.hash, there.block):
        return f"is 0x{there.hash} of block 0x{there.block}, and 0x{row['mined']} of 0x{row['block']} in the outbox"
    return None


async def _mined(rpc_url: str, first_block: int, accounts: set[str]) -> dict[str, dict[int, _Mined]]:
    """Return the mined transactions by account and nonce, from every block since the market's first."""
    mined: dict[str, dict[int, _Mined]] = {account: {} for account in accounts}
    async with node_client() as http:
        node = Node(rpc_url, http)
        head = int(await node.call("eth_blockNumber"), 16)
        for start in range(first_block, head + 1, _BLOCKS_PER_READ):
            numbers = range(start, min(start + _BLOCKS_PER_READ, head + 1))
            for block in await node.calls([("eth_getBlockByNumber", (hex(number), True)) for number in numbers]):
                for sent in block["transactions"]:
                    if (account := sent["from"][2:].lower()) in mined:
                        mined[account][int(sent["nonce"], 16)] = _Mined(sent["hash"][2:], block["hash"][2:])
    return mined
