"""Transactions whose block is no part of the chain any more become pending again, and are sent again."""

from collections.abc import Sequence

import structlog

from coordinatord.chain.rpc import Rpc
from coordinatord.relayer.account import Account
from coordinatord.relayer.heads import blocks_by_number
from coordinatord.relayer.pending import PendingTx, PendingTxs
from coordinatord.relayer.term import Term
from coordinatord.store import relay_outcomes, relay_txs

log = structlog.get_logger(__name__)


async def undo_vanished(term: Term, rpc: Rpc, account: Account, mined: Sequence[tuple[int, bytes]]) -> int:
    """`mined`: number and hash of blocks that transactions of ours are recorded in. How many transactions are pending
    again.

    Blocks above the head count as gone: if it is only this node that has not got them, the bytes that it is sent
    are known or used already, and the steps that look at those blocks find them mined.
    """
    now = await blocks_by_number(rpc, [number for number, _ in mined])
    vanished = [
        block_hash
        for (_, block_hash), there in zip(mined, now, strict=True)
        if there is None or there.hash != "0x" + block_hash.hex()
    ]
    if not vanished:
        return 0
    async with term.transaction() as connection:
        count = await relay_outcomes.unmine(connection, account.chain_id, account.address, vanished)
        stored = await relay_txs.pending(connection, account.chain_id, account.address)
    account.pending = PendingTxs(PendingTx.of(tx) for tx in stored)
    log.warning("transactions unmade by a reorganisation", blocks=len(vanished), transactions=count)
    return count
