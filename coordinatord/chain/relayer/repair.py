"""Repair of an account's nonces after each look at the head: give up lost ones, close gaps, raise fees."""

from collections.abc import Iterable, Sequence
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.chain.relayer import results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.adoption import adopt_forgotten, adopt_versions
from coordinatord.chain.relayer.blocks import HeadBlock, blocks_by_number
from coordinatord.chain.relayer.fees import replacement
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs
from coordinatord.chain.relayer.receipts import receipts_and_count, receipts_of
from coordinatord.chain.relayer.resolution import resolve
from coordinatord.chain.relayer.sendings import give_up
from coordinatord.chain.relayer.signing import dearer, sign_fill
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

MAX_TURNS: Final = 3
# A node that reports a floor far too low must not make the relayer sign thousands of self-transfers.
_MAX_SUSPECTS: Final = 256
# Their receipts and the count are one request.
_MAX_EXAMINED: Final = 32
# Longer than any reorg.
_LOST_KEPT_S: Final = 3600.0


async def revive_unmined(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, mined: Sequence[tuple[int, bytes]]
) -> int:
    """Make transactions pending again if a reorg removed their block. Return their number. `mined` lists number and
    hash of blocks in which transactions of the account were mined.

    Blocks above the head count as removed. If only this node lacks them, resending the bytes is harmless, and the steps
    that apply those blocks find the transactions mined.
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
        count = await results_sql.unmine(connection, account.chain_id, account.address, vanished)
        stored = await transactions_sql.pending(connection, account.chain_id, account.address)
    account.pending = PendingTxs(stored)
    log.warning("transactions unmade by a reorganisation", blocks=len(vanished), transactions=count)
    return count


@attrs.frozen(slots=True)
class Findings:
    """Nonces with a problem. `used` are below the chain's count although their transactions are pending: they were
    mined, or lost to a foreign transaction. `suspects` are not pending although the chain waits for them. `foreign`
    were used by bytes that the database does not know."""

    used: tuple[int, ...]
    suspects: tuple[int, ...]
    foreign: range


def examine(
    floor: int, stored_next: int | None, pending: Iterable[int], pool_end: int = 0, lost: Iterable[int] = ()
) -> Findings:
    """Return the nonces that need repair.

    The chain's count is the floor. From the floor up to the highest assigned nonce, every nonce must have a live
    transaction, because a missing one blocks all higher nonces. `stored_next` is one above the highest assigned nonce,
    or None for a new account.

    Nodes have transactions of the account up to `pool_end`. If the database does not know some of them, it forgot them
    in a failover. They are left to be mined, and never replaced. `lost`: nonces that foreign transactions used,
    although the database has transactions for them.
    """
    waiting, known = set(pending), set(lost)
    taken = max(floor, pool_end)
    following = taken if stored_next is None else stored_next
    last = min(following, floor + len(waiting) + _MAX_SUSPECTS)
    return Findings(
        used=tuple(sorted(nonce for nonce in waiting if nonce < floor)),
        suspects=tuple(
            nonce for nonce in range(floor, last) if nonce not in waiting and (nonce >= taken or nonce in known)
        ),
        foreign=range(following, max(following, floor)),
    )


async def repair_nonces(term: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock) -> bool:
    """Repair the nonces of an account that was read at `block`. True when there is something to send or to sign."""
    async with term.transaction() as connection:
        stored_next = await transactions_sql.next_nonce(connection, account.chain_id, account.address)
        account.require_plausible_floor(stored_next)
        unexplained = await transactions_sql.unexplained(
            connection, account.chain_id, account.address, account.nonce_floor
        )
    own, lost = [tx.nonce for tx in account.pending], [tx.nonce for tx in account.lost]
    findings = examine(account.nonce_floor, stored_next, own, account.pool_end, lost)
    if findings.suspects or not account.pools_read:
        await account.read_pools(rpc.others)
        account.pools_read = True
        findings = examine(account.nonce_floor, stored_next, own, account.pool_end, lost)
    wanted = {*unexplained, *findings.foreign} - account.searched
    adopted = await adopt_forgotten(term, rpc, account, block, wanted=wanted, foreign=findings.foreign) if wanted else 0
    await _find_lost(term, rpc, account, block)
    given_up = await _give_up_lost(term, rpc, account, block, findings.used) if findings.used else 0
    unmade = await _undo_deep(term, rpc, account, findings.suspects) if findings.suspects else 0
    filled = await _close_gaps(term, account, findings.suspects) if findings.suspects else 0
    return adopted + given_up + unmade + filled > 0


async def _find_lost(term: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock) -> None:
    """Resolve lost transactions that were mined after all: their receipt was late, or in a block of another branch."""
    now = anyio.current_time()
    for tx in list(account.lost):
        if tx.missed_at is None:
            tx.missed_at = now
        elif now > tx.missed_at + _LOST_KEPT_S:
            account.lost.remove(tx)
    receipts = await receipts_of(rpc, [version.hash for tx in account.lost for version in tx.versions])
    await resolve(term, rpc, account, [receipt for receipt in receipts if receipt.block_number <= block.number])


async def _give_up_lost(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, block: HeadBlock, used: Sequence[int]
) -> int:
    """Decide nonces that the chain counts as used: mined in a block that was not seen, or used by a foreign
    transaction. Return the number of lost ones."""
    candidates = [tx for tx in account.pending if tx.nonce in used][:_MAX_EXAMINED]
    # From one node: with one node's receipts and another node's count, a mined transaction could look lost.
    receipts, count = await receipts_and_count(
        rpc, account.address, [version.hash for tx in candidates for version in tx.versions]
    )
    mined = {receipt.tx_hash for receipt in receipts}
    await resolve(term, rpc, account, [receipt for receipt in receipts if receipt.block_number <= block.number])
    for tx in account.pending:
        if tx.nonce not in used or any(v.hash in mined for v in tx.versions):
            tx.missed_at = None
    missing = [tx for tx in candidates if tx.nonce < count and not any(v.hash in mined for v in tx.versions)]
    now = anyio.current_time()
    lost = [tx for tx in missing if tx.is_missing(now)]
    if lost and await _others_have(rpc, account, lost):
        return 0
    if lost:
        adopted = await adopt_versions(term, rpc, account, block, lost)
        lost = [tx for tx in lost if tx.nonce not in adopted]
    if lost:
        log.warning("nonces lost to foreign transactions", nonces=[tx.nonce for tx in lost])
        async with term.transaction() as connection:
            await results_sql.mark_lost(connection, [tx.id for tx in lost])
        for tx in lost:
            account.was_lost(tx)
    return len(lost)


async def _others_have(rpc: Rpc, account: RelayerAccount, lost: Sequence[PendingTx]) -> bool:
    """Return True while another node has one of the receipts, or does not count the nonces as used. Relying on one
    node, the relayer might send an op under a second nonce."""
    hashes = [version.hash for tx in lost for version in tx.versions]
    for other in rpc.others:
        receipts, count = await receipts_and_count(other, account.address, hashes)
        if receipts or count <= max(tx.nonce for tx in lost):
            log.warning("another node does not see these nonces lost", nonces=[tx.nonce for tx in lost])
            return True
    return False


async def _undo_deep(term: RoleConnection, rpc: Rpc, account: RelayerAccount, suspects: Sequence[int]) -> int:
    """Revive nonces recorded as mined that the chain waits for: a reorg went deeper than the blocks that are checked
    when a fork is seen."""
    async with term.transaction() as connection:
        mined = await transactions_sql.blocks_among(connection, account.chain_id, account.address, suspects)
    return await revive_unmined(term, rpc, account, mined)


async def _close_gaps(term: RoleConnection, account: RelayerAccount, suspects: Sequence[int]) -> int:
    fills: list[PendingTx] = []
    async with term.transaction() as connection:
        for gap in await transactions_sql.gaps_among(connection, account.chain_id, account.address, suspects):
            log.warning("gap in the nonces closed", nonce=gap.nonce)
            fills.append(await sign_fill(connection, account, gap))
    for fill in fills:
        if (lost := account.lost.with_id(fill.id)) is not None:
            account.lost.remove(lost)
        account.pending.add(fill)
    return len(fills)


async def raise_fees(term: RoleConnection, account: RelayerAccount, mined_within: float) -> bool:
    """Sign new versions where the market or a node demands more, or where a turn has passed. True when there is
    something to send."""
    _note_passed_turn(account, mined_within)
    cheap = [
        tx
        for tx in account.pending
        if tx.unsendable or replacement(tx.fee, account.market, refused=tx.underpriced, ceiling=account.ceiling)
    ]
    if not cheap:
        return False
    async with term.transaction() as connection:
        versions = [(tx, version) for tx in cheap if (version := await dearer(account, tx))]
        await transactions_sql.add_versions(connection, [(tx.id, version) for tx, version in versions])
    for tx, version in versions:
        account.pending.replace(tx, version)
        metrics.relay_replacements.labels("fee").inc()
        log.info("transaction replaced", nonce=tx.nonce, max_fee=version.max_fee, max_tip=version.max_tip)
    return True


def _note_passed_turn(account: RelayerAccount, mined_within: float) -> None:
    """Raise the fee of the transaction with the next nonce when its turn has passed, even if nodes accepted it.

    A pool may have lost it, or refuse it with an unknown message. After its third turn, replace it with a
    self-transfer, so that its nonce does not hold up others. While the chain makes no blocks, an accepted transaction
    only gets a higher fee.
    """
    tx, now = next(iter(account.pending), None), anyio.current_time()
    if tx is None or tx.nonce != account.nonce_floor or account.ceiling.is_below(account.market):
        return
    if not tx.turn_has_passed(account.nonce_floor_since, now, mined_within):
        return
    tx.turns_passed += 1
    log.warning("transaction not mined in its turn", nonce=tx.nonce, turns=tx.turns_passed, accepted=tx.is_accepted)
    chain_goes_on = account.head > tx.answered_head or not tx.is_accepted
    if tx.turns_passed >= MAX_TURNS and chain_goes_on and not tx.latest.fills:
        give_up(tx, "turn_passed")
    else:
        tx.underpriced = True
    # Start of its next turn, if the ceiling allows no new version.
    tx.answered_at, tx.answered_head = now, account.head
