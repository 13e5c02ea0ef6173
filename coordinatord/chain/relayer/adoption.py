"""Adoption of the account's transactions that the database lost in a failover, from the chain's blocks.

An asynchronous standby may lack the last broadcast transactions of the former primary. Their nonces then look foreign,
and their relays are queued or missing. Adoption stores the transactions again from the blocks. Queued relays with the
same call data end with them and are not sent twice.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec
import structlog

from common.refusal import Refused
from common.secp256k1 import recover
from common.transactions import Transaction
from coordinatord.chain.contracts.relayed_calls import calls_of
from coordinatord.chain.relayer import results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.in_flight import PendingTx, Version
from coordinatord.chain.relayer.transactions_sql import NewTx
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result, quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.storage.database.role_connection import RoleConnection

log = structlog.get_logger(__name__)

MAX_BLOCKS: Final = 256  # read from the head backwards
_BLOCKS_PER_REQUEST: Final = 8
_PRIORITY: Final = 0


class _MinedTx(msgspec.Struct, rename="camel"):
    """Transaction in a block. The members from `to` on are set for type 2."""

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


@attrs.frozen(slots=True)
class _Found:
    nonce: int
    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    version: Version


async def adopt_forgotten(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, head: HeadBlock, *, wanted: set[int], foreign: range
) -> int:
    """Search the blocks for transactions with used nonces that the database does not know. `foreign`: nonces without a
    row. Return the number of relays in the transactions found."""
    chain_id, address = account.chain_id, account.address
    found = await _read_blocks(rpc, account, head, wanted)
    if any(tx.nonce in foreign for tx in found):
        async with term.transaction() as connection:
            await transactions_sql.insert_foreign(connection, chain_id, address, foreign)
    carried = 0
    for tx in found:
        async with term.transaction() as connection:
            new = NewTx(tx.nonce, tx.target, tx.calldata, tx.gas, _PRIORITY, "relay", tx.version)
            tx_id = await transactions_sql.adopt(connection, chain_id, address, new)
            bound = await results_sql.carried_by(connection, tx_id, tx.target, _calls(tx.calldata))
        account.lost.add(PendingTx(tx_id, tx.nonce, tx.target, tx.gas, [tx.version], tx.calldata))
        log.warning("forgotten transaction adopted", nonce=tx.nonce, relays=bound)
        carried += bound
    account.searched |= wanted
    return carried


async def adopt_versions(
    term: RoleConnection, rpc: Rpc, account: RelayerAccount, head: HeadBlock, missing: Sequence[PendingTx]
) -> set[int]:
    """Search the blocks for forgotten versions of transactions whose nonces were used by unknown bytes. Return these
    nonces. Receipts then end the transactions."""
    forgotten = {tx.nonce: tx for tx in await _read_blocks(rpc, account, head, {tx.nonce for tx in missing})}
    if not forgotten:
        return set()
    async with term.transaction() as connection:
        same = [
            (tx, found.version)
            for tx in missing
            if (found := forgotten.get(tx.nonce)) is not None
            and (tx.target, tx.calldata) == (found.target, found.calldata)
        ]
        await transactions_sql.add_versions(connection, [(tx.id, version) for tx, version in same])
    for tx, version in same:
        account.pending.replace(tx, version)
        log.warning("forgotten version adopted", nonce=tx.nonce)
    return {tx.nonce for tx, _ in same}


async def _read_blocks(rpc: Rpc, account: RelayerAccount, head: HeadBlock, wanted: set[int]) -> list[_Found]:
    """Return the account's transactions with these nonces, from the head backwards."""
    found: dict[int, _Found] = {}
    last = head.number
    while len(found) < len(wanted) and last >= 0 and last > head.number - MAX_BLOCKS:
        first = max(0, last - _BLOCKS_PER_REQUEST + 1)
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in range(first, last + 1)]
        for answer in await rpc.batch(calls):
            if isinstance(answer, RpcError):
                raise answer
            block = decode_result(answer, _Block | None, "eth_getBlockByNumber")  # type: ignore[arg-type] # a union is a type to msgspec
            for raw in [] if block is None else block.transactions:
                tx = _own_transaction(raw, account)
                if tx is not None and tx.nonce in wanted and account.watched(tx.version.hash) is None:
                    found[tx.nonce] = tx
        last = first - 1
    return list(found.values())


def _own_transaction(raw: msgspec.Raw, account: RelayerAccount) -> _Found | None:
    """Return the transaction if it has the relayer's form and a valid signature, which proves the node's data."""
    if decode_result(raw, _Sender, "eth_getBlockByNumber").from_.lower() != "0x" + account.address.hex():
        return None
    tx = decode_result(raw, _MinedTx, "eth_getBlockByNumber")
    if tx.to is None or tx.max_fee_per_gas is None or tx.max_priority_fee_per_gas is None or tx.input == "0x":
        return None
    try:
        target, calldata = bytes.fromhex(tx.to[2:]), bytes.fromhex(tx.input[2:])
        max_fee, max_tip = quantity(tx.max_fee_per_gas), quantity(tx.max_priority_fee_per_gas)
        r, s = (int(word, 16).to_bytes(32, "big") for word in (tx.r, tx.s))
        nonce, gas, parity = quantity(tx.nonce), quantity(tx.gas), int(tx.v, 16)
        unsigned = Transaction(account.chain_id, nonce, max_tip, max_fee, gas, target, quantity(tx.value), calldata)
        signed = unsigned.with_signature(parity, r, s)
    except (ValueError, OverflowError):
        return None
    signature = b"".join((r, s, b"\x1c" if parity else b"\x1b"))
    if "0x" + signed.hash.hex() != tx.hash.lower() or recover(unsigned.digest, signature) != account.address:
        return None
    return _Found(nonce, target, calldata, gas, Version(signed.hash, signed.raw, max_fee, max_tip, fills=False))


def _calls(calldata: bytes) -> Sequence[tuple[bytes, int | None]]:
    try:
        calls = calls_of(calldata)
    except Refused:
        calls = None
    return [(calldata, None)] if calls is None else [(call, place) for place, call in enumerate(calls)]
