"""Resolve relays from the receipts of their transactions, and record their spans."""

import time
from collections.abc import Sequence

import structlog

from common.artifacts import decode_error_name
from common.scalars import hex_of
from common.tracing import spans
from coordinatord.base import metrics
from coordinatord.chain.contracts.relayed_calls import find_refused_calls
from coordinatord.chain.relayer import budgets_sql, results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import REORG_WINDOW_BLOCKS, find_missing_blocks
from coordinatord.chain.relayer.in_flight import PendingTx
from coordinatord.chain.relayer.outbox_sql import StoredRelay
from coordinatord.chain.relayer.receipts import TxReceipt, confirm_receipts
from coordinatord.chain.relayer.results_sql import RefusedCall
from coordinatord.chain.relayer.role import LACKING_ROLE_ERRORS
from coordinatord.chain.relayer.simulate import replay
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.role_connection import RoleConnection
from coordinatord.storage.database.traces_sql import TracedRelay

log = structlog.get_logger(__name__)


async def find_inconclusive_refusals(
    connection: Connection, rpc: Rpc, chain_id: int, refused: Sequence[int]
) -> set[int]:
    """Return the refused relays that may still pass: relays behind an older undecided relay. If the node lacks the
    newest block with an account's transactions, return all of `refused`. A reorg removes the highest blocks first, so a
    node that has the newest block also has the older ones."""
    if not refused:
        return set()
    newest = await transactions_sql.read_newest_blocks(connection, chain_id, REORG_WINDOW_BLOCKS)
    if await find_missing_blocks(rpc, newest):
        return set(refused)
    return await results_sql.find_relays_behind_older(connection, refused)


async def resolve_receipts(
    role_connection: RoleConnection, rpc: Rpc, account: RelayerAccount, receipts: Sequence[TxReceipt]
) -> None:
    """End all relays of these mined transactions, in one database transaction.

    Raise Retryable, with nothing ended, while other nodes do not report the same receipts.
    """
    # Keep one receipt per transaction: nodes on two branches may report receipts of different versions.
    found = list({tx.id: (tx, r) for r in receipts if (tx := account.find_watched(r.tx_hash)) is not None}.values())
    if not found:
        return
    await confirm_receipts(rpc, [receipt for _, receipt in found])
    mined = [
        MinedTx(
            tx.id, r.tx_hash, r.block_number, r.block_hash, r.succeeded, r.gas_used, _is_self_transfer(tx, r.tx_hash)
        )
        for tx, r in found
    ]
    filled = [tx.tx_id for tx in mined if tx.is_self_transfer]
    carrying = [(tx, r) for tx, r in found if not _is_self_transfer(tx, r.tx_hash)]
    async with role_connection.transaction() as connection:
        relays = await results_sql.read_carried_relays(connection, [tx.id for tx, _ in carrying])
    refused: list[RefusedCall] = []
    to_requeue: list[int] = []
    for tx, receipt in carrying:
        if receipt.succeeded:
            calls = find_refused_calls(receipt.logs, tx.target)
            refused += [RefusedCall(tx.id, index, decode_error_name(data), data) for index, data in calls.items()]
            continue
        # A receipt does not give the reason, so replay each call on the state after its block. Calls that pass ran out
        # of gas.
        carried = [relay for relay in relays if relay.tx_id == tx.id]
        reasons = await replay(rpc, account.address, [(r.target, r.calldata) for r in carried], receipt.block_number)
        for relay, reason in zip(carried, reasons, strict=True):
            if reason is None or reason.name in LACKING_ROLE_ERRORS:
                to_requeue.append(relay.id)
            else:
                refused.append(RefusedCall(tx.id, relay.call_index, reason.name, reason.raw))
    to_requeue += await _find_refused_too_early(role_connection, rpc, account, relays, refused)
    async with role_connection.transaction() as connection:
        await transactions_sql.record_mined(connection, mined)
        rebound = await results_sql.rebind_carried_relays(
            connection, [tx.id for tx, r in carrying if r.succeeded], refused
        )
        booked = await budgets_sql.book_gas(connection, mined)
        to_requeue = [relay_id for relay_id in to_requeue if relay_id not in rebound]
        await results_sql.requeue_relays(
            connection,
            to_requeue + [relay.id for relay in await results_sql.read_carried_relays(connection, filled)],
            "rpc_internal",
        )
        ended = await results_sql.end_carried_relays(connection, [tx.id for tx, _ in carrying], refused)
    for tx, receipt in found:
        (account.pending_txs if tx in account.pending_txs else account.lost_txs).remove(tx)
        _learn_gas(account, tx, receipt, refused)
    for kind, gas in booked.items():
        metrics.relay_gas.labels(kind).inc(gas)
    for kind, state, seconds in ended:
        metrics.relay_outcomes.labels(kind, state).inc()
        metrics.relay_mined_seconds.labels(kind).observe(seconds)
    await record_spans(role_connection, mined)
    log.debug("transactions mined", transactions=len(found), relays=len(ended))


def _learn_gas(account: RelayerAccount, tx: PendingTx, receipt: TxReceipt, refused: Sequence[RefusedCall]) -> None:
    """Learn the gas that this transaction's ops used. Ignore a transaction with a refused op, which uses less gas."""
    if _is_self_transfer(tx, receipt.tx_hash) or not tx.expected_gas:
        return
    if not receipt.succeeded:
        account.planned_gas.learn_out_of_gas()
    elif not any(call.tx_id == tx.id for call in refused):
        account.planned_gas.learn_usage(tx.expected_gas, receipt.gas_used)


def _is_self_transfer(tx: PendingTx, mined_hash: bytes) -> bool:
    return any(version.is_self_transfer and version.hash == mined_hash for version in tx.versions)


async def _find_refused_too_early(
    role_connection: RoleConnection,
    rpc: Rpc,
    account: RelayerAccount,
    relays: Sequence[StoredRelay],
    refused: Sequence[RefusedCall],
) -> list[int]:
    """Return the ids of refused relays to retry: the ops that such a relay builds on were missing when the relay was
    mined.

    Nonces keep the order within one account. With several accounts, a reorg may mine a settle before its claim.
    """
    refused_positions = {(call.tx_id, call.call_index) for call in refused}
    relays = [
        relay for relay in relays if relay.state == "signed" and (relay.tx_id, relay.call_index) in refused_positions
    ]
    if not relays:
        return []
    async with role_connection.transaction() as connection:
        premature = await find_inconclusive_refusals(connection, rpc, account.chain_id, [relay.id for relay in relays])
    reasons = await replay(rpc, account.address, [(relay.target, relay.calldata) for relay in relays])
    for relay in relays:
        if relay.id in premature:
            metrics.relay_chained.labels(relay.kind.value, "taken_apart").inc()
    return [relay.id for relay, reason in zip(relays, reasons, strict=True) if relay.id in premature or reason is None]


async def record_spans(role_connection: RoleConnection, mined: Sequence[MinedTx]) -> None:
    """Record a span `relay` for each traced relay, and a span `block` for each transaction. The span `block` is a child
    of the transaction's first traced relay, with links to the other relays."""
    if not spans.is_on():
        return
    async with role_connection.transaction() as connection:
        traced = await traces_sql.read_traced_relays(connection, [tx.tx_id for tx in mined])
    now = time.time()
    for tx in mined:
        relays = [relay for relay in traced if relay.tx_id == tx.tx_id]
        contexts = [context for relay in relays if (context := _record_span(relay, now))]
        if contexts:
            spans.record_span(
                "block",
                parent=contexts[0],
                links=contexts[1:],
                started=relays[0].signed_at,
                ended=now,
                block=tx.block_number,
                tx=hex_of(tx.mined_hash),
            )


def _record_span(relay: TracedRelay, now: float) -> str | None:
    return spans.record_span(
        "relay", parent=relay.traceparent, started=relay.stored_at, ended=now, op=relay.kind, state=relay.state
    )
