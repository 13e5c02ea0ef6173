"""Receipts of transactions, as a node reports them."""

from collections.abc import Sequence

import attrs
import msgspec

from coordinatord.chain.contracts.relayed_calls import ReceiptLog
from coordinatord.chain.rpc.chain_data import Hash, Quantity
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result, quantity
from coordinatord.chain.rpc.errors import RpcError


class _RawReceipt(msgspec.Struct):
    transactionHash: Hash  # noqa: N815 - the node's names
    blockNumber: Quantity  # noqa: N815
    blockHash: Hash  # noqa: N815
    status: str
    gasUsed: Quantity  # noqa: N815
    logs: list[ReceiptLog]


@attrs.frozen(slots=True)
class TxReceipt:
    tx_hash: bytes
    block_number: int
    block_hash: bytes
    succeeded: bool
    gas_used: int
    logs: tuple[ReceiptLog, ...] = attrs.field(repr=False)


async def receipts_of(rpc: Rpc, hashes: Sequence[bytes]) -> list[TxReceipt]:
    """Return the receipts of the mined transactions among these."""
    answers = await rpc.batch([RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes])
    return [receipt for answer in answers for receipt in _receipt(answer)]


async def receipts_and_count(rpc: Rpc, account: bytes, hashes: Sequence[bytes]) -> tuple[list[TxReceipt], int]:
    """Return the receipts of the mined transactions, and the number of used nonces of `account`.

    Both are one request, so that the same node behind an endpoint answers them.
    """
    calls = [RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes]
    *answers, count = await rpc.batch([*calls, RpcCall("eth_getTransactionCount", ("0x" + account.hex(), "latest"))])
    if isinstance(count, RpcError):
        raise count
    found = [receipt for answer in answers for receipt in _receipt(answer)]
    return found, quantity(decode_result(count, str, "eth_getTransactionCount"))


def _receipt(answer: msgspec.Raw | RpcError) -> list[TxReceipt]:
    """Return the receipt, or nothing while the transaction is not mined."""
    if isinstance(answer, RpcError):
        raise answer
    raw = decode_result(answer, _RawReceipt | None, "eth_getTransactionReceipt")  # type: ignore[arg-type] # a union is a type to msgspec
    return [] if raw is None else [_read(raw)]


def _read(raw: _RawReceipt) -> TxReceipt:
    return TxReceipt(
        bytes.fromhex(raw.transactionHash[2:]),
        quantity(raw.blockNumber),
        bytes.fromhex(raw.blockHash[2:]),
        quantity(raw.status) == 1,
        quantity(raw.gasUsed),
        tuple(raw.logs),
    )
