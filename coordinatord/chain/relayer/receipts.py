"""Receipts: of a whole block at once, or of single hashes."""

from collections.abc import Collection, Sequence
from typing import Final

import attrs
import msgspec

from coordinatord.chain.contracts.relayed_calls import ReceiptLog
from coordinatord.chain.rpc.chain_data import Hash, Quantity
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result, quantity
from coordinatord.chain.rpc.errors import Meaning, RpcError

# Up to so many, asking for each is less work for the node and for us than the block's receipts.
_FEW: Final = 4


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


@attrs.frozen(slots=True)
class WantedReceipts:
    """Transactions of ours that this block lists."""

    number: int
    block_hash: str
    hashes: Collection[bytes]


async def receipts_in_blocks(rpc: Rpc, blocks: Sequence[WantedReceipts]) -> list[TxReceipt]:
    """The receipts of what is wanted, all in one request; not those of another block of that number (a reorg)."""
    whole = [block for block in blocks if len(block.hashes) > _FEW]
    answers = await rpc.batch([RpcCall("eth_getBlockReceipts", (hex(block.number),)) for block in whole])
    single = [h for block in blocks if len(block.hashes) <= _FEW for h in block.hashes]
    found: list[TxReceipt] = []
    for block, answer in zip(whole, answers, strict=True):
        if not isinstance(answer, RpcError):
            found += map(_read, decode_result(answer, list[_RawReceipt], "eth_getBlockReceipts"))
        elif answer.meaning is Meaning.REFUSED:
            single += block.hashes  # an old node does not serve the method
        else:
            raise answer
    found += await receipts_of(rpc, single)
    block_of = {h: bytes.fromhex(block.block_hash[2:]) for block in blocks for h in block.hashes}
    return [receipt for receipt in found if block_of.get(receipt.tx_hash) == receipt.block_hash]


async def receipts_of(rpc: Rpc, hashes: Sequence[bytes]) -> list[TxReceipt]:
    """The receipts of those transactions that are mined."""
    answers = await rpc.batch([RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes])
    return [receipt for answer in answers for receipt in _receipt(answer)]


async def receipts_and_count(rpc: Rpc, account: bytes, hashes: Sequence[bytes]) -> tuple[list[TxReceipt], int]:
    """The receipts of those that are mined, and how many nonces `account` has used, in one request: of many nodes
    behind one endpoint, one answers both."""
    calls = [RpcCall("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in hashes]
    *answers, count = await rpc.batch([*calls, RpcCall("eth_getTransactionCount", ("0x" + account.hex(), "latest"))])
    if isinstance(count, RpcError):
        raise count
    found = [receipt for answer in answers for receipt in _receipt(answer)]
    return found, quantity(decode_result(count, str, "eth_getTransactionCount"))


def _receipt(answer: msgspec.Raw | RpcError) -> list[TxReceipt]:
    """None of it while the transaction is not mined."""
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
