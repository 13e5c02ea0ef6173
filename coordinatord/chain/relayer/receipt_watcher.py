"""Watch blocks for the pending transactions of one account, and resolve their relays.

If the new head is the child of the last applied block, only the receipts of our transactions in it are read. Otherwise,
the receipts of all pending transactions are read. On another branch, and at the start, the blocks that hold our mined
transactions are checked first.
"""

import math
from typing import Final

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.head import BlockPosition, ChainHead
from coordinatord.chain.relayer import transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import REORG_WINDOW_BLOCKS, HeadBlock, find_missing_blocks, read_latest_block
from coordinatord.chain.relayer.receipts import read_receipts
from coordinatord.chain.relayer.repair import revive_unmined
from coordinatord.chain.relayer.resolution import resolve_receipts
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

# A head that stays behind for longer than this means that the chain was rolled back, not that the node lags.
_LAG_TIMEOUT_S: Final = 5.0


class ReceiptWatcher:
    """Keeps `account.pending_txs` equal to the transactions that are pending as of the head."""

    def __init__(self, role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount) -> None:
        self._role_connection = role_connection
        self._rpc = rpc
        self._account = account
        self._recent_blocks = ChainHead(REORG_WINDOW_BLOCKS)
        self._behind_since = self._behind_at = -math.inf

    @property
    def head(self) -> str | None:
        """Hash of the last applied block."""
        return self._recent_blocks.head_hash

    async def step(self) -> HeadBlock | None:
        """Read the head and apply it. Return the head, new or unchanged, or None when this node lags.

        Raise Retryable or RpcError on failure. The next step reads the head again, so no block is skipped.
        """
        block = await read_latest_block(self._rpc)
        match self._recent_blocks.classify(block.number, block.hash, block.parent_hash):
            case BlockPosition.SAME:
                pass
            case BlockPosition.NEXT:
                await self._apply_block(block)
            case BlockPosition.BEHIND if not self._has_lagged_long():
                return None
            case position:
                if position is BlockPosition.BEHIND:
                    log.warning("chain head moved back", block=block.number)
                if position is not BlockPosition.AHEAD or not await self._is_last_block_on_chain():
                    await self._revive_removed(block)
                await self._recheck_block(block)
        return block

    def _has_lagged_long(self) -> bool:
        """Return True if the head has stayed behind for long. A lagging node catches up quickly, but a chain that was
        rolled back does not."""
        now = anyio.current_time()
        if now > self._behind_at + 2 * _LAG_TIMEOUT_S:
            self._behind_since = now
        self._behind_at = now
        return now > self._behind_since + _LAG_TIMEOUT_S

    async def _is_last_block_on_chain(self) -> bool:
        """Return True if the last applied block is still part of the chain."""
        number, block_hash = self._recent_blocks.head_number, self._recent_blocks.head_hash
        if number is None or block_hash is None:
            return False
        return not await find_missing_blocks(self._rpc, [(number, bytes.fromhex(block_hash[2:]))])

    async def _apply_block(self, block: HeadBlock) -> None:
        watched = self._account.find_watched
        hashes = {h for text in block.transactions if watched(h := bytes.fromhex(text[2:])) is not None}
        receipts = [
            receipt
            for receipt in await read_receipts(self._rpc, list(hashes))
            if block.hash == "0x" + receipt.block_hash.hex()
        ]
        if len(receipts) != len(hashes):
            raise Retryable("chain_unreachable", f"the node withholds receipts of block {block.number}")
        await resolve_receipts(self._role_connection, self._rpc, self._account, receipts)
        self._recent_blocks.add(block.number, block.hash)

    async def _recheck_block(self, block: HeadBlock) -> None:
        receipts = await read_receipts(self._rpc, self._account.watched_hashes())
        # Transactions mined above this block are resolved by the steps that apply the blocks above it.
        await resolve_receipts(
            self._role_connection, self._rpc, self._account, [r for r in receipts if r.block_number <= block.number]
        )
        self._recent_blocks.restart(block.number, block.hash)

    async def _revive_removed(self, block: HeadBlock) -> None:
        chain_id, address = self._account.chain_id, self._account.address
        async with self._role_connection.transaction() as connection:
            mined = await transactions_sql.read_mined_blocks(
                connection, chain_id, address, block.number - REORG_WINDOW_BLOCKS
            )
        await revive_unmined(self._role_connection, self._rpc, self._account, mined)
