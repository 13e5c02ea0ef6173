"""Turn plans into stored, signed bytes. Nothing is sent here, and only stored bytes are ever sent.

The nonce is assigned and the bytes are stored in one database transaction, on the connection that holds the account's
lock. A crash before the commit leaves queued relays, and a crash after it leaves bytes to be sent.
"""

from collections.abc import Sequence

import structlog

from common.transactions import SignedTransaction, Transaction
from coordinatord.chain.relayer import queue_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import PlannedTx
from coordinatord.chain.relayer.fees import Fee, initial_fee, replacement_fee, self_transfer_fee
from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.chain.relayer.signers import SignerUnavailable, sign_in_order
from coordinatord.chain.relayer.tx_size import BASE_GAS
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)


async def sign_planned(
    connection: Connection, account: RelayerAccount, plans: Sequence[PlannedTx]
) -> tuple[list[PendingTx], SignerUnavailable | None]:
    """Assign contiguous nonces, store the signed bytes and bind the relays to them. Return the signed transactions, and
    the failure that stopped the rest, if any. The remaining relays stay queued."""
    stored_next_nonce = await transactions_sql.read_next_nonce(connection, account.chain_id, account.address)
    account.require_plausible_nonce_floor(stored_next_nonce)
    first = max(account.nonce_floor, account.pool_nonces_end, stored_next_nonce or 0)
    if stored_next_nonce is not None and first > stored_next_nonce:
        foreign = range(stored_next_nonce, first)
        log.warning("nonces used by foreign transactions", first=foreign.start, count=len(foreign))
        await transactions_sql.insert_foreign_nonces(connection, account.chain_id, account.address, foreign)
    fee = initial_fee(account.fee_market, account.fee_ceiling)
    txs = [
        PendingTx(
            0, nonce, plan.target, plan.gas_limit, [], plan.calldata, is_unsent=True, expected_gas=plan.expected_gas
        )
        for nonce, plan in enumerate(plans, first)
    ]
    signed, failure = await sign_in_order(account.signer, [_build_unsigned(account, tx, fee) for tx in txs])
    txs, plans = txs[: len(signed)], plans[: len(signed)]
    if txs:
        for tx, signed_tx in zip(txs, signed, strict=True):
            tx.versions.append(_new_version(fee, signed_tx))
        await transactions_sql.insert_transactions(connection, account.chain_id, account.address, txs)
        bindings = [
            (relay.id, tx.id, plan.call_index(index))
            for tx, plan in zip(txs, plans, strict=True)
            for index, relay in enumerate(plan.relays)
        ]
        await queue_sql.mark_signed(connection, bindings)
    return txs, failure


async def sign_self_transfer(
    connection: Connection, account: RelayerAccount, nonce: int, lost_id: int | None
) -> PendingTx:
    """Sign a transfer of zero value to the account itself, to fill a nonce that the chain waits for. `lost_id` is the
    nonce's lost transaction. The old versions of that transaction stay watched, because they may still be mined
    instead."""
    lost = None if lost_id is None else account.lost_txs.find_by_id(lost_id)
    self_transfer = PendingTx(
        lost_id or 0, nonce, account.address, BASE_GAS, [] if lost is None else list(lost.versions)
    )
    # If the lost transaction is already a self-transfer, do not sign: the same self-transfer is sent again.
    if not self_transfer.versions or not self_transfer.latest.is_self_transfer:
        self_transfer.versions.append(
            await _sign_version(
                account, self_transfer, initial_fee(account.fee_market, account.fee_ceiling), is_self_transfer=True
            )
        )
    if lost_id is None:
        await transactions_sql.insert_transactions(connection, account.chain_id, account.address, [self_transfer])
    else:
        await transactions_sql.turn_into_self_transfer(connection, self_transfer)
    return self_transfer


async def sign_replacement(account: RelayerAccount, tx: PendingTx) -> SignedVersion | None:
    """Sign the next version of a pending transaction, or return None while the current version is good enough. An
    abandoned transaction becomes a self-transfer, which uses up the nonce."""
    if tx.is_unsendable:
        return await _sign_version(
            account,
            tx,
            self_transfer_fee(tx.fee, account.fee_market, ceiling=account.fee_ceiling),
            is_self_transfer=True,
        )
    fee = replacement_fee(tx.fee, account.fee_market, refused=tx.is_underpriced, ceiling=account.fee_ceiling)
    return None if fee is None else await _sign_version(account, tx, fee, is_self_transfer=tx.latest.is_self_transfer)


async def _sign_version(account: RelayerAccount, tx: PendingTx, fee: Fee, *, is_self_transfer: bool) -> SignedVersion:
    return _new_version(
        fee,
        await account.signer.sign(_build_unsigned(account, tx, fee, is_self_transfer=is_self_transfer)),
        is_self_transfer=is_self_transfer,
    )


def _build_unsigned(account: RelayerAccount, tx: PendingTx, fee: Fee, *, is_self_transfer: bool = False) -> Transaction:
    gas, target, calldata = (
        (BASE_GAS, account.address, b"") if is_self_transfer else (tx.gas_limit, tx.target, tx.calldata)
    )
    return Transaction(account.chain_id, tx.nonce, fee.max_tip, fee.max_fee, gas, target, 0, calldata)


def _new_version(fee: Fee, signed: SignedTransaction, *, is_self_transfer: bool = False) -> SignedVersion:
    return SignedVersion(signed.hash, signed.raw, fee.max_fee, fee.max_tip, is_self_transfer)
