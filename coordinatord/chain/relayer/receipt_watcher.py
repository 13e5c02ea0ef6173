"""From blocks to resolved relays: one watcher for all pending transactions of an account.

Block by block while each names the one before; anything else (first sight, a fork, blocks missed) is answered by one
procedure that trusts no memory: check the blocks that hold our mined transactions, then ask for every pending one.
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
from coordinatord.chain.relayer.blocks import WINDOW, HeadBlock, blocks_by_number, latest_block
from coordinatord.chain.relayer.receipts import receipts_of
from coordinatord.chain.relayer.repair import revive_unmined
from coordinatord.chain.relayer.resolution import resolve
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

_LAG: Final = 5.0  # seconds
_CATCH_UP: Final = 64  # missed blocks that are read one by one; beyond, asking for our own transactions is less work


class ReceiptWatcher:
    """Keeps `account.pending` to what is pending as of the head."""

    def __init__(self, term: RoleConnection, rpc: Rpc, account: RelayerAccount) -> None:
        self._term = term
        self._rpc = rpc
        self._account = account
        self._seen = ChainHead(WINDOW)
        self._behind_since = self._behind_at = -math.inf

    @property
    def head(self) -> str | None:
        """The hash of the block last gone by."""
        return self._seen.hash

    async def step(self) -> HeadBlock | None:
        """Look at the head. The block when it is the head to go by (new or the same), None when this node lags behind
        what another answered. Raises Retryable or RpcError; nothing is skipped by that, the next step looks again."""
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
                log.warning("the chain went back", block=block.number)
                await self._look_anew(block)
            case HeadPlace.FORK:
                log.warning("the chain was reorganised", block=block.number)
                await self._look_anew(block)
        return block

    def _lags_for_long(self) -> bool:
        """A node that lags catches up in a moment; a chain that was set back stays where it is."""
        now = anyio.current_time()
        if now > self._behind_at + 2 * _LAG:
            self._behind_since = now
        self._behind_at = now
        return now > self._behind_since + _LAG

    async def _catch_up(self, block: HeadBlock) -> None:
        head = self._seen.number
        if head is None or block.number - head > _CATCH_UP:
            await self._look_anew(block)
            return
        between = await blocks_by_number(self._rpc, range(head + 1, block.number))
        blocks = [*(b for b in between if b is not None), block]
        first, linked = blocks[0], all(child.parent == parent.hash for parent, child in pairwise(blocks))
        is_next = self._seen.place(first.number, first.hash, first.parent) is HeadPlace.NEXT
        if len(blocks) == block.number - head and linked and is_next:
            await self._apply(blocks)
        else:
            await self._look_anew(block)

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

    async def _look_anew(self, block: HeadBlock) -> None:
        await self._undo_vanished(block)
        receipts = await receipts_of(self._rpc, self._account.watched_hashes())
        # What was mined above this block is left to the steps that look at the blocks above it.
        await resolve(self._term, self._rpc, self._account, [r for r in receipts if r.block_number <= block.number])
        self._seen.restart(block.number, block.hash)

    async def _undo_vanished(self, block: HeadBlock) -> None:
        chain_id, address = self._account.chain_id, self._account.address
        async with self._term.transaction() as connection:
            mined = await transactions_sql.mined_blocks(connection, chain_id, address, block.number - WINDOW)
        await revive_unmined(self._term, self._rpc, self._account, mined)
