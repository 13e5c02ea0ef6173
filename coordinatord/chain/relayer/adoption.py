"""Adopt the account's transactions that are in the chain's blocks but were lost from the database in a failover.

An asynchronous standby may lack the last transactions that the former primary stored. Adoption finds them in the blocks
and stores them again. Queued relays with the same calldata end with the adopted transactions and are not sent twice.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from common.refusal import Refused
from common.secp256k1 import recover_address
from common.transactions import Transaction
from coordinatord.chain.contracts.relayed_calls import decode_calls
from coordinatord.chain.relayer import results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_quantity, decode_result
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

# Blocks that are searched, from the head backwards.
MAX_SEARCHED_BLOCKS: Final = 256
_BLOCKS_PER_REQUEST: Final = 8


class _MinedTx(msgspec.Struct, rename="camel"):
    """Transaction in a block. Every transaction of the relayer (type 2) has a `to` and both fees."""

    hash: str
    nonce: str
    input: str
    gas: str
    value: str
    r: str
    s: str
    v: str
    from_: str = msgspec.field(name="from")
    to: str | None = None
    max_fee_per_gas: str | None = None
    max_priority_fee_per_gas: str | None = None


class _Block(msgspec.Struct):
    transactions: list[msgspec.Raw]


class _Sender(msgspec.Struct):
    from_: str = msgspec.field(name="from")


async def adopt_forgotten_transactions(
    role_connection: RoleConnection,
    rpc: Rpc,
    account: RelayerAccount,
    head: HeadBlock,
    *,
    nonces: set[int],
    foreign_nonces: range = range(0),
) -> set[int]:
    """Search the blocks for the account's transactions with these nonces, and store those that the database lacks.
    Return the nonces of the stored transactions. `foreign_nonces` are used nonces without a row in the database.

    If a pending transaction has the same nonce and content, store the found transaction as another version of it.
    """
    chain_id, address = account.chain_id, account.address
    found = await _find_own_transactions(rpc, account, head, nonces)
    pending = {tx.nonce: tx for tx in account.pending_txs}
    adopted: set[int] = set()
    if any(tx.nonce in foreign_nonces for tx in found):
        async with role_connection.transaction() as connection:
            await transactions_sql.insert_foreign_nonces(connection, chain_id, address, foreign_nonces)
    for tx in found:
        known = pending.get(tx.nonce)
        if known is not None and (known.target, known.calldata) != (tx.target, tx.calldata):
            continue
        async with role_connection.transaction() as connection:
            await transactions_sql.adopt_transaction(connection, chain_id, address, tx)
            await results_sql.record_carried_relays(connection, tx.id, tx.target, _decode_calls(tx.calldata))
        if known is not None:
            account.pending_txs.replace(known, tx.latest)
        else:
            account.lost_txs.add(tx)
        log.warning("forgotten transaction adopted", nonce=tx.nonce)
        adopted.add(tx.nonce)
    account.searched_nonces |= nonces
    return adopted


async def _find_own_transactions(
    rpc: Rpc, account: RelayerAccount, head: HeadBlock, nonces: set[int]
) -> list[PendingTx]:
    """Return the account's transactions with these nonces, from the head backwards."""
    found: dict[int, PendingTx] = {}
    last = head.number
    while len(found) < len(nonces) and last >= 0 and last > head.number - MAX_SEARCHED_BLOCKS:
        first = max(0, last - _BLOCKS_PER_REQUEST + 1)
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in range(first, last + 1)]
        for answer in await rpc.batch(calls):
            if isinstance(answer, RpcError):
                raise answer
            block = decode_result(answer, _Block | None, "eth_getBlockByNumber")  # type: ignore[arg-type] # a union is a type to msgspec
            for raw in [] if block is None else block.transactions:
                tx = _decode_own_transaction(raw, account)
                if tx is not None and tx.nonce in nonces and account.find_watched(tx.latest.hash) is None:
                    found[tx.nonce] = tx
        last = first - 1
    return list(found.values())


def _decode_own_transaction(raw: msgspec.Raw, account: RelayerAccount) -> PendingTx | None:
    """Return the transaction if it has the relayer's form and the account's valid signature, which proves that the node
    did not invent it."""
    if decode_result(raw, _Sender, "eth_getBlockByNumber").from_.lower() != "0x" + account.address.hex():
        return None
    tx = decode_result(raw, _MinedTx, "eth_getBlockByNumber")
    if tx.to is None or tx.max_fee_per_gas is None or tx.max_priority_fee_per_gas is None or tx.input == "0x":
        return None
    try:
        target, calldata = bytes.fromhex(tx.to[2:]), bytes.fromhex(tx.input[2:])
        max_fee, max_tip = decode_quantity(tx.max_fee_per_gas), decode_quantity(tx.max_priority_fee_per_gas)
        r, s = (int(word, 16).to_bytes(32, "big") for word in (tx.r, tx.s))
        nonce, gas, parity = decode_quantity(tx.nonce), decode_quantity(tx.gas), int(tx.v, 16)
        unsigned = Transaction(
            account.chain_id, nonce, max_tip, max_fee, gas, target, decode_quantity(tx.value), calldata
        )
        signed = unsigned.with_signature(parity, r, s)
    except (ValueError, OverflowError):
        return None
    signature = b"".join((r, s, b"\x1c" if parity else b"\x1b"))
    if "0x" + signed.hash.hex() != tx.hash.lower() or recover_address(unsigned.digest, signature) != account.address:
        return None
    version = SignedVersion(signed.hash, signed.raw, max_fee, max_tip, is_self_transfer=False)
    return PendingTx(0, nonce, target, gas, [version], calldata)


def _decode_calls(calldata: bytes) -> Sequence[tuple[bytes, int | None]]:
    try:
        calls = decode_calls(calldata)
    except Refused:
        calls = None
    return [(calldata, None)] if calls is None else [(call, index) for index, call in enumerate(calls)]
