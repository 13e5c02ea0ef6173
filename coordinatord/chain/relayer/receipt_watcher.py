"""Watch blocks for the pending transactions of one account, and resolve their relays.

Blocks are applied one by one while each names the previous one as its parent. Everything else (the first block, a fork,
missed blocks) is handled without relying on memory: check the blocks that hold our mined transactions, then request the
receipts of all pending ones.
"""

import math
from itertools import pairwise
from typing import Final

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.head import ChainHead, HeadPlace
from coordinatord.chain.relayer import transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import WINDOW_BLOCKS, HeadBlock, blocks_by_number, latest_block
from coordinatord.chain.relayer.receipts import receipts_of
from coordinatord.chain.relayer.repair import revive_unmined
from coordinatord.chain.relayer.resolution import resolve
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

# A head that stays behind for longer than this means that the chain was rolled back, not that the node lags.
_LAG_TIMEOUT_S: Final = 5.0
# Missed blocks that are read one by one. Beyond that, requesting our own receipts takes less work.
_MAX_CATCH_UP_BLOCKS: Final = 64


class ReceiptWatcher:
    """Keeps `account.pending` equal to the pending transactions as of the head."""

    def __init__(self, term: RoleConnection, rpc: Rpc, account: RelayerAccount) -> None:
        self._term = term
        self._rpc = rpc
        self._account = account
        self._seen = ChainHead(WINDOW_BLOCKS)
        self._behind_since = self._behind_at = -math.inf

    @property
    def head(self) -> str | None:
        """Hash of the last applied block."""
        return self._seen.hash

    async def step(self) -> HeadBlock | None:
        """Look at the head. Return the block if it is the head to use (new or unchanged), or None when this node lags.

        Raise Retryable or RpcError on failure. The next step looks again, so nothing is skipped.
        """
        block = await latest_block(self._rpc)
        match self._seen.place(block.number, block.hash, block.parent):
            case HeadPlace.SAME:
                pass
            case HeadPlace.NEXT:
                await self._apply([block])
            case HeadPlace.AHEAD:
                await self._catch_up(block)
            case HeadPlace.BEHIND:
                if not self._lags_for_long():
                    return None
                log.warning("chain head moved back", block=block.number)
                await self._look_again(block)
            case HeadPlace.FORK:
                await self._look_again(block)
        return block

    def _lags_for_long(self) -> bool:
        """Return True if the head has stayed behind for long. A lagging node catches up quickly, but a chain that was
        rolled back does not."""
        now = anyio.current_time()
        if now > self._behind_at + 2 * _LAG_TIMEOUT_S:
            self._behind_since = now
        self._behind_at = now
        return now > self._behind_since + _LAG_TIMEOUT_S

    async def _catch_up(self, block: HeadBlock) -> None:
        head = self._seen.number
        if head is None or block.number - head > _MAX_CATCH_UP_BLOCKS:
            await self._look_again(block)
            return
        between = await blocks_by_number(self._rpc, range(head + 1, block.number))
        blocks = [*(b for b in between if b is not None), block]
        first, linked = blocks[0], all(child.parent == parent.hash for parent, child in pairwise(blocks))
        is_next = self._seen.place(first.number, first.hash, first.parent) is HeadPlace.NEXT
        if len(blocks) == block.number - head and linked and is_next:
            await self._apply(blocks)
        else:
            await self._look_again(block)

    async def _apply(self, blocks: list[HeadBlock]) -> None:
        block_of = {tx_hash: block.hash for block in blocks for tx_hash in self._watched_in(block)}
        receipts = [
            receipt
            for receipt in await receipts_of(self._rpc, list(block_of))
            if block_of.get(receipt.tx_hash) == "0x" + receipt.block_hash.hex()
        ]
        if len(receipts) != len(block_of):
            raise Retryable("chain_unreachable", f"the node withholds receipts up to block {blocks[-1].number}")
        await resolve(self._term, self._rpc, self._account, receipts)
        for block in blocks:
            self._seen.add(block.number, block.hash)

    def _watched_in(self, block: HeadBlock) -> set[bytes]:
        watched = self._account.watched
        return {h for text in block.transactions if watched(h := bytes.fromhex(text[2:])) is not None}

    async def _look_again(self, block: HeadBlock) -> None:
        await self._undo_vanished(block)
        receipts = await receipts_of(self._rpc, self._account.watched_hashes())
        # Transactions mined above this block are resolved by the steps that apply the blocks above it.
        await resolve(self._term, self._rpc, self._account, [r for r in receipts if r.block_number <= block.number])
        self._seen.restart(block.number, block.hash)

    async def _undo_vanished(self, block: HeadBlock) -> None:
        chain_id, address = self._account.chain_id, self._account.address
        async with self._term.transaction() as connection:
            mined = await transactions_sql.mined_blocks(connection, chain_id, address, block.number - WINDOW_BLOCKS)
        await revive_unmined(self._term, self._rpc, self._account, mined)
