"""Resolve relays from the receipts of their transactions."""

from collections.abc import Sequence
from typing import Final

import structlog

from common.artifacts import decode_error
from coordinatord.base import metrics
from coordinatord.chain.contracts.relayed_calls import refused_calls
from coordinatord.chain.relayer import gas_bookings_sql, results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import WINDOW_BLOCKS, blocks_by_number
from coordinatord.chain.relayer.confirmation import confirmed
from coordinatord.chain.relayer.in_flight import PendingTx
from coordinatord.chain.relayer.receipts import TxReceipt
from coordinatord.chain.relayer.results_sql import RefusedCall
from coordinatord.chain.relayer.role import LACKING
from coordinatord.chain.relayer.simulate import replay
from coordinatord.chain.relayer.transactions_sql import MinedTx, NewestBlock
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import is_held
from coordinatord.storage.database.role_connection import RoleConnection, role_of

log = structlog.get_logger(__name__)

# A restarted or new process takes over long before this.
_RETIRED_AFTER_S: Final = 600.0


async def inconclusive(connection: Connection, rpc: Rpc, chain_id: int, refused: Sequence[int]) -> set[int]:
    """Return the refused relays that may still pass: relays behind an older relay under way, or all of them while the
    node lacks a block with an account's transactions.

    Only the newest such block is checked, because a reorg removes the highest blocks first.
    """
    if not refused:
        return set()
    newest = await transactions_sql.newest_blocks(connection, chain_id, WINDOW_BLOCKS)
    blocks = await blocks_by_number(rpc, [block.number for block in newest])
    for block, there in zip(newest, blocks, strict=True):
        stands = there is not None and there.hash == "0x" + block.hash.hex()
        if not stands and not await _is_retired(connection, chain_id, block):
            return set(refused)
    return await results_sql.behind_undecided(connection, refused)


async def _is_retired(connection: Connection, chain_id: int, newest: NewestBlock) -> bool:
    """Return True when no process has relayed from the account for a while. No process would notice that its block
    is gone, and waiting for the block would delay every refusal."""
    return newest.quiet > _RETIRED_AFTER_S and not await is_held(connection, role_of(chain_id, newest.account))


async def resolve(term: RoleConnection, rpc: Rpc, account: RelayerAccount, receipts: Sequence[TxReceipt]) -> None:
    """End all relays of these mined transactions, in one database transaction.

    Raise Retryable, with nothing ended, while other nodes do not report the same receipts.
    """
    # One receipt per transaction: nodes on two branches may have mined different versions.
    found = list({tx.id: (tx, r) for r in receipts if (tx := account.watched(r.tx_hash)) is not None}.values())
    if not found:
        return
    await confirmed(rpc, [receipt for _, receipt in found])
    mined = [
        MinedTx(tx.id, r.tx_hash, r.block_number, r.block_hash, r.succeeded, r.gas_used, _is_fill(tx, r.tx_hash))
        for tx, r in found
    ]
    filled = [tx.tx_id for tx in mined if tx.fills]
    carrying = [(tx, r) for tx, r in found if not _is_fill(tx, r.tx_hash)]
    refused = [call for tx, r in carrying if r.succeeded for call in _refused_calls(tx, r)]
    reverted_refused, passing = await _reverted(term, rpc, account, [(tx, r) for tx, r in carrying if not r.succeeded])
    refused += reverted_refused
    passing += await _refused_too_early(term, rpc, account, refused)
    async with term.transaction() as connection:
        await transactions_sql.record_mined(connection, mined)
        taken_back = await results_sql.take_back(connection, [tx.id for tx, r in carrying if r.succeeded], refused)
        booked = await gas_bookings_sql.book(connection, mined)
        passing = [relay_id for relay_id in passing if relay_id not in taken_back]
        await results_sql.requeue(
            connection,
            passing + [relay.id for relay in await results_sql.carried(connection, filled)],
            "rpc_internal",
        )
        ended = await results_sql.end_carried(connection, [tx.id for tx, _ in carrying], refused)
    for tx, receipt in found:
        account.was_mined(tx)
        _learn(account, tx, receipt, refused)
    for kind, gas in booked.items():
        metrics.relay_gas.labels(kind).inc(gas)
    for relay in ended:
        metrics.relay_outcomes.labels(relay.kind.value, relay.state).inc()
        metrics.relay_mined_seconds.labels(relay.kind.value).observe(relay.seconds)
    log.debug("transactions mined", transactions=len(found), relays=len(ended))


def _learn(account: RelayerAccount, tx: PendingTx, receipt: TxReceipt, refused: Sequence[RefusedCall]) -> None:
    """Learn the gas that this transaction's ops used. A refused op uses less than others, so ignore its transaction."""
    if _is_fill(tx, receipt.tx_hash) or not tx.expected:
        return
    if not receipt.succeeded:
        account.gas.was_starved()
    elif not any(call.tx_id == tx.id for call in refused):
        account.gas.was_used(tx.expected, receipt.gas_used)


def _is_fill(tx: PendingTx, mined_hash: bytes) -> bool:
    return any(version.fills and version.hash == mined_hash for version in tx.versions)


def _refused_calls(tx: PendingTx, receipt: TxReceipt) -> list[RefusedCall]:
    refused = refused_calls(receipt.logs, tx.target)
    return [RefusedCall(tx.id, index, decode_error(data), data) for index, data in refused.items()]


async def _reverted(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, found: Sequence[tuple[PendingTx, TxReceipt]]
) -> tuple[list[RefusedCall], list[int]]:
    """Decide the relays of transactions that reverted as a whole.

    Return the calls that the chain refuses, and the ids of relays that it would accept: their transaction ran out of
    gas, or the account had lost its role. A receipt does not give the reason, so replay each call on the state after
    its block.
    """
    refused: list[RefusedCall] = []
    passing: list[int] = []
    for tx, receipt in found:
        async with term.transaction() as connection:
            relays = await results_sql.carried(connection, [tx.id])
        calls = [(relay.target, relay.calldata) for relay in relays]
        reasons = await replay(rpc, account.address, calls, receipt.block_number)
        for relay, reason in zip(relays, reasons, strict=True):
            if reason is None or reason.name in LACKING:
                passing.append(relay.id)
            else:
                refused.append(RefusedCall(tx.id, relay.call_index, reason.name, reason.raw))
    return refused, passing


async def _refused_too_early(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, refused: Sequence[RefusedCall]
) -> list[int]:
    """Return the ids of refused relays to retry, because the ops that they build on were missing when they were mined.

    Nonces keep the order within one account. With several accounts, a reorg may mine a settle before its claim. If the
    refusal were final, the job would stay claimed although its provider has done the work.
    """
    if not refused:
        return []
    places = {(call.tx_id, call.call_index) for call in refused}
    async with term.transaction() as connection:
        carried = await results_sql.carried(connection, {call.tx_id for call in refused})
        relays = [relay for relay in carried if relay.is_live and (relay.tx_id, relay.call_index) in places]
        without_ground = await inconclusive(connection, rpc, account.chain_id, [relay.id for relay in relays])
    reasons = await replay(rpc, account.address, [(relay.target, relay.calldata) for relay in relays])
    for relay in relays:
        if relay.id in without_ground:
            metrics.relay_chained.labels(relay.kind.value, "taken_apart").inc()
    return [
        relay.id for relay, reason in zip(relays, reasons, strict=True) if relay.id in without_ground or reason is None
    ]
