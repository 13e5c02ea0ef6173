"""Turn plans into stored, signed bytes. Nothing is sent here, and only stored bytes are ever sent.

The nonce is assigned and the bytes are stored in one database transaction, on the connection that holds the account's
lock. A crash before the commit leaves queued relays, and a crash after it leaves bytes to be sent.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from common.transactions import SignedTransaction, Transaction
from coordinatord.chain.relayer import queue_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import Planned
from coordinatord.chain.relayer.fees import Fee, offer, replacement, substitute
from coordinatord.chain.relayer.in_flight import PendingTx, Version
from coordinatord.chain.relayer.outside_signer import SignerUnavailable
from coordinatord.chain.relayer.signers import sign_in_order
from coordinatord.chain.relayer.transactions_sql import Gap, NewTx
from coordinatord.chain.relayer.tx_size import BASE_GAS
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)

_FILL_PRIORITY: Final = 0


async def sign_planned(
    connection: Connection, account: RelayerAccount, plans: Sequence[Planned]
) -> tuple[list[PendingTx], SignerUnavailable | None]:
    """Assign contiguous nonces, store the signed bytes and bind the relays to them.

    Return the signed transactions, and the failure that stopped the rest, if any: an external signer may fail midway,
    and the remaining relays stay queued.
    """
    stored_next = await transactions_sql.next_nonce(connection, account.chain_id, account.address)
    account.require_plausible_floor(stored_next)
    first = max(account.nonce_floor, account.pool_end, stored_next or 0)
    if stored_next is not None and first > stored_next:
        foreign = range(stored_next, first)
        log.warning("nonces used by foreign transactions", first=foreign.start, count=len(foreign))
        await transactions_sql.insert_foreign(connection, account.chain_id, account.address, foreign)
    fee = offer(account.market, account.ceiling)
    wanted = [
        _transaction(account, nonce, plan.gas, fee, target=plan.target, calldata=plan.calldata)
        for nonce, plan in enumerate(plans, first)
    ]
    signed, failure = await sign_in_order(account.signer, wanted)
    if not signed:
        return [], failure
    plans = plans[: len(signed)]
    txs = [
        NewTx(nonce, plan.target, plan.calldata, plan.gas, plan.priority, "relay", _version(fee, bytes_of))
        for nonce, (plan, bytes_of) in enumerate(zip(plans, signed, strict=True), first)
    ]
    ids = await transactions_sql.insert(connection, account.chain_id, account.address, txs)
    bound = [
        (relay.id, tx_id, plan.call_index(place))
        for tx_id, plan in zip(ids, plans, strict=True)
        for place, relay in enumerate(plan.relays)
    ]
    await queue_sql.mark_signed(connection, [b[0] for b in bound], [b[1] for b in bound], [b[2] for b in bound])
    pending = [
        PendingTx(tx_id, tx.nonce, tx.target, tx.gas, [tx.version], tx.calldata, unsent=True, expected=plan.expected)
        for tx_id, tx, plan in zip(ids, txs, plans, strict=True)
    ]
    return pending, failure


async def sign_fill(connection: Connection, account: RelayerAccount, gap: Gap) -> PendingTx:
    """Sign a self-transfer of nothing for a nonce that the chain waits for."""
    version = await _sign_fill(account, gap.nonce, offer(account.market, account.ceiling))
    if gap.lost_id is not None:
        lost = account.lost.with_id(gap.lost_id)
        # The old versions may still be mined instead.
        versions = [] if lost is None else list(lost.versions)
        # A lost self-transfer is sent again.
        if not versions or not versions[-1].fills:
            versions.append(version)
        await transactions_sql.turn_into_fill(connection, gap.lost_id, BASE_GAS, versions[-1])
        return PendingTx(gap.lost_id, gap.nonce, account.address, BASE_GAS, versions)
    fill = NewTx(gap.nonce, account.address, b"", BASE_GAS, _FILL_PRIORITY, "fill", version)
    (tx_id,) = await transactions_sql.insert(connection, account.chain_id, account.address, [fill])
    return PendingTx(tx_id, gap.nonce, account.address, BASE_GAS, [version])


async def dearer(account: RelayerAccount, tx: PendingTx) -> Version | None:
    """Sign the next version of a pending transaction, or return None while the present one is good enough. A
    transaction that is given up becomes a self-transfer, which closes its nonce."""
    if tx.unsendable:
        return await _sign_fill(account, tx.nonce, substitute(tx.fee, account.market, ceiling=account.ceiling))
    fee = replacement(tx.fee, account.market, refused=tx.underpriced, ceiling=account.ceiling)
    if fee is None:
        return None
    if tx.latest.fills:
        return await _sign_fill(account, tx.nonce, fee)
    return await _sign(account, tx.nonce, tx.gas, fee, target=tx.target, calldata=tx.calldata)


async def _sign_fill(account: RelayerAccount, nonce: int, fee: Fee) -> Version:
    return await _sign(account, nonce, BASE_GAS, fee, target=account.address, calldata=b"", fills=True)


async def _sign(
    account: RelayerAccount, nonce: int, gas: int, fee: Fee, *, target: bytes, calldata: bytes, fills: bool = False
) -> Version:
    transaction = _transaction(account, nonce, gas, fee, target=target, calldata=calldata)
    return _version(fee, await account.signer.sign(transaction), fills=fills)


def _transaction(
    account: RelayerAccount, nonce: int, gas: int, fee: Fee, *, target: bytes, calldata: bytes
) -> Transaction:
    return Transaction(
        chain_id=account.chain_id,
        nonce=nonce,
        max_priority_fee_per_gas=fee.tip,
        max_fee_per_gas=fee.cap,
        gas=gas,
        to=target,
        value=0,
        data=calldata,
    )


def _version(fee: Fee, signed: SignedTransaction, *, fills: bool = False) -> Version:
    return Version(signed.hash, signed.raw, fee.cap, fee.tip, fills)
