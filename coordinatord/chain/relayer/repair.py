"""Repair an account's nonces after each read of the head: abandon lost transactions, close gaps, raise fees."""

from collections.abc import Sequence
from typing import Final

import anyio
import structlog

from coordinatord.base import metrics
from coordinatord.chain.relayer import results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.adoption import adopt_forgotten_transactions
from coordinatord.chain.relayer.blocks import HeadBlock, find_missing_blocks
from coordinatord.chain.relayer.broadcast import abandon_tx
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs
from coordinatord.chain.relayer.receipts import read_receipts, read_receipts_and_count
from coordinatord.chain.relayer.resolution import resolve_receipts
from coordinatord.chain.relayer.signing import sign_replacement, sign_self_transfer
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

MAX_PASSED_TURNS: Final = 3
# A node that reports a floor far too low must not make the relayer sign thousands of self-transfers.
_MAX_SUSPECT_NONCES: Final = 256
# Transactions examined at once. Their receipts and the nonce count are read in one request.
_MAX_EXAMINED_TXS: Final = 32
# Lost transactions are watched for this long, which exceeds any reorg.
_LOST_TX_RETENTION_S: Final = 3600.0


async def revive_unmined(
    role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, mined: Sequence[tuple[int, bytes]]
) -> None:
    """Make transactions pending again if a reorg removed their block. `mined` has the number and the hash of each block
    with mined transactions of the account.

    Blocks above the head count as removed. If only this node lacks them, resending the bytes is harmless.
    """
    removed = await find_missing_blocks(rpc, mined)
    if not removed:
        return
    async with role_connection.transaction() as connection:
        count = await results_sql.unmine_blocks(connection, account.chain_id, account.address, removed)
        stored = await transactions_sql.read_pending(connection, account.chain_id, account.address)
    account.pending_txs = PendingTxs(stored)
    log.warning("transactions reverted by reorg", blocks=len(removed), transactions=count)


def find_suspect_nonces(account: RelayerAccount, next_nonce: int) -> list[int]:
    """Return the nonces below `next_nonce` (the next to assign) that are not pending although the chain waits for them.
    A missing nonce blocks all higher ones. Transactions in nodes' pools that the database forgot in a failover are left
    to be mined, and never replaced."""
    floor = account.nonce_floor
    pool_end = max(floor, account.pool_nonces_end)
    waiting, known = {tx.nonce for tx in account.pending_txs}, {tx.nonce for tx in account.lost_txs}
    last = min(next_nonce, floor + len(waiting) + _MAX_SUSPECT_NONCES)
    return [nonce for nonce in range(floor, last) if nonce not in waiting and (nonce >= pool_end or nonce in known)]


async def repair_nonces(role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock) -> None:
    """Repair the nonces of an account that was read at `block`."""
    async with role_connection.transaction() as connection:
        stored_next_nonce = await transactions_sql.read_next_nonce(connection, account.chain_id, account.address)
        account.require_plausible_nonce_floor(stored_next_nonce)
        unexplained = await transactions_sql.find_unexplained_nonces(
            connection, account.chain_id, account.address, account.nonce_floor
        )
    # A new account has no gaps.
    next_nonce = stored_next_nonce or 0
    suspects = find_suspect_nonces(account, next_nonce)
    if suspects or not account.are_pools_read:
        await account.read_pools(rpc.other_nodes)
        account.are_pools_read = True
        suspects = find_suspect_nonces(account, next_nonce)
    foreign = range(next_nonce, account.nonce_floor) if stored_next_nonce is not None else range(0)
    wanted = {*unexplained, *foreign} - account.searched_nonces
    if wanted:
        await adopt_forgotten_transactions(role_connection, rpc, account, block, nonces=wanted, foreign_nonces=foreign)
    await _resolve_late_receipts(role_connection, rpc, account, block)
    used = [tx.nonce for tx in account.pending_txs if tx.nonce < account.nonce_floor]
    if used:
        await _abandon_lost(role_connection, rpc, account, block, used)
    if suspects:
        await _revive_after_deep_reorg(role_connection, rpc, account, suspects)
        await _close_gaps(role_connection, account, suspects)


async def _resolve_late_receipts(
    role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock
) -> None:
    """Resolve lost transactions that were mined after all: their receipt was late, or in a block of another branch."""
    now = anyio.current_time()
    for tx in list(account.lost_txs):
        if tx.receipt_missing_since is None:
            tx.receipt_missing_since = now
        elif now > tx.receipt_missing_since + _LOST_TX_RETENTION_S:
            account.lost_txs.remove(tx)
    receipts = await read_receipts(rpc, [version.hash for tx in account.lost_txs for version in tx.versions])
    await resolve_receipts(
        role_connection, rpc, account, [receipt for receipt in receipts if receipt.block_number <= block.number]
    )


async def _abandon_lost(
    role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock, used: Sequence[int]
) -> None:
    """Find out why the chain counts the nonces of pending transactions as used. Resolve a transaction that was mined in
    a block that was not seen, and abandon a transaction whose nonce a foreign transaction used."""
    candidates = [tx for tx in account.pending_txs if tx.nonce in used][:_MAX_EXAMINED_TXS]
    # Read both from one node. With one node's receipts and another node's count, a mined transaction could look lost.
    receipts, count = await read_receipts_and_count(
        rpc, account.address, [version.hash for tx in candidates for version in tx.versions]
    )
    mined = {receipt.tx_hash for receipt in receipts}
    await resolve_receipts(
        role_connection, rpc, account, [receipt for receipt in receipts if receipt.block_number <= block.number]
    )
    for tx in account.pending_txs:
        if tx.nonce not in used or any(v.hash in mined for v in tx.versions):
            tx.receipt_missing_since = None
    missing = [tx for tx in candidates if tx.nonce < count and not any(v.hash in mined for v in tx.versions)]
    now = anyio.current_time()
    lost = [tx for tx in missing if tx.record_missing_receipt(now)]
    if lost and await _others_contradict(rpc, account, lost):
        return
    if lost:
        adopted = await adopt_forgotten_transactions(
            role_connection, rpc, account, block, nonces={tx.nonce for tx in lost}
        )
        lost = [tx for tx in lost if tx.nonce not in adopted]
    if lost:
        log.warning("nonces lost to foreign transactions", nonces=[tx.nonce for tx in lost])
        async with role_connection.transaction() as connection:
            await results_sql.mark_lost(connection, [tx.id for tx in lost])
        for tx in lost:
            account.pending_txs.remove(tx)
            account.lost_txs.add(tx)


async def _others_contradict(rpc: Rpc, account: RelayerAccount, lost: Sequence[PendingTx]) -> bool:
    """Return True while another node has one of the receipts, or does not count the nonces as used. If the relayer
    relied on one node, it might send an op under a second nonce."""
    hashes = [version.hash for tx in lost for version in tx.versions]
    for other in rpc.other_nodes:
        receipts, count = await read_receipts_and_count(other, account.address, hashes)
        if receipts or count <= max(tx.nonce for tx in lost):
            log.warning("another node does not see these nonces lost", nonces=[tx.nonce for tx in lost])
            return True
    return False


async def _revive_after_deep_reorg(
    role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, suspects: Sequence[int]
) -> None:
    """Revive transactions that are recorded as mined although the chain waits for their nonces, because a reorg went
    deeper than the blocks that are checked after a fork."""
    async with role_connection.transaction() as connection:
        mined = await transactions_sql.find_blocks_of_nonces(connection, account.chain_id, account.address, suspects)
    await revive_unmined(role_connection, rpc, account, mined)


async def _close_gaps(role_connection: RoleConnection, account: RelayerAccount, suspects: Sequence[int]) -> None:
    self_transfers: list[PendingTx] = []
    async with role_connection.transaction() as connection:
        for nonce, lost_id in await transactions_sql.find_nonce_gaps(
            connection, account.chain_id, account.address, suspects
        ):
            log.warning("gap in the nonces closed", nonce=nonce)
            self_transfers.append(await sign_self_transfer(connection, account, nonce, lost_id))
    for self_transfer in self_transfers:
        if (lost := account.lost_txs.find_by_id(self_transfer.id)) is not None:
            account.lost_txs.remove(lost)
        account.pending_txs.add(self_transfer)


async def raise_fees(role_connection: RoleConnection, account: RelayerAccount, mined_within_s: float) -> None:
    """Sign new versions for transactions whose fee is too low for the market or a node, or that were not mined in their
    turn."""
    _reprice_passed_turn(account, mined_within_s)
    versions = [(tx, version) for tx in account.pending_txs if (version := await sign_replacement(account, tx))]
    if not versions:
        return
    async with role_connection.transaction() as connection:
        await transactions_sql.add_versions(connection, [(tx.id, version) for tx, version in versions])
    for tx, version in versions:
        account.pending_txs.replace(tx, version)
        metrics.relay_replacements.labels("fee").inc()
        log.info("transaction replaced", nonce=tx.nonce, max_fee=version.max_fee, max_tip=version.max_tip)


def _reprice_passed_turn(account: RelayerAccount, mined_within_s: float) -> None:
    """Raise the fee of the transaction with the next nonce when its turn, the time that it has to be mined, has passed.
    A pool may have lost the transaction, or refuse it with an unknown message. After the third turn, replace it with a
    self-transfer. But if a node accepted the transaction and the chain makes no blocks, only raise the fee."""
    tx, now = next(iter(account.pending_txs), None), anyio.current_time()
    if tx is None or tx.nonce != account.nonce_floor or account.fee_ceiling.is_below(account.fee_market):
        return
    if not tx.turn_has_passed(account.nonce_floor_since, now, mined_within_s):
        return
    tx.turns_passed += 1
    log.warning("transaction not mined in its turn", nonce=tx.nonce, turns=tx.turns_passed, accepted=tx.is_accepted)
    chain_advances = account.head_number > tx.turn_start_head or not tx.is_accepted
    if tx.turns_passed >= MAX_PASSED_TURNS and chain_advances and not tx.latest.is_self_transfer:
        abandon_tx(tx, "turn_passed")
    else:
        tx.is_underpriced = True
    # If the ceiling allows no new version, the next turn starts now.
    tx.turn_started_at, tx.turn_start_head = now, account.head_number
