"""Receipts: of a whole block at once, or of single hashes."""

from collections.abc import Collection, Sequence
from typing import Final

import attrs
import msgspec

from coordinatord.chain.relayed import Log
from coordinatord.chain.rpc import Call, Rpc, decode_result, quantity
from coordinatord.chain.rpc_errors import Meaning, RpcError

# Up to so many, asking for each is less work for the node and for us than the block's receipts.
_FEW: Final = 4
_BATCH: Final = 200


class _Receipt(msgspec.Struct):
    transactionHash: str  # noqa: N815 - the node's names
    blockNumber: str  # noqa: N815
    blockHash: str  # noqa: N815
    status: str
    logs: list[Log]


@attrs.frozen(slots=True)
class Receipt:
    tx_hash: bytes
    block_number: int
    block_hash: bytes
    succeeded: bool
    logs: tuple[Log, ...] = attrs.field(repr=False)


async def receipts_in_block(rpc: Rpc, number: int, block_hash: str, wanted: Collection[bytes]) -> list[Receipt]:
    """The receipts of `wanted` in this block; not those of another block of its number (a reorg meanwhile)."""
    if len(wanted) <= _FEW:
        found = await receipts_of(rpc, list(wanted))
    else:
        try:
            raw = await rpc.call_as(list[_Receipt], "eth_getBlockReceipts", hex(number))
        except RpcError as error:
            if error.meaning is not Meaning.REFUSED:
                raise
            found = await receipts_of(rpc, list(wanted))  # an old node does not serve the method
        else:
            found = [receipt for receipt in map(_read, raw) if receipt.tx_hash in wanted]
    block = bytes.fromhex(block_hash[2:])
    return [receipt for receipt in found if receipt.block_hash == block]


async def receipts_of(rpc: Rpc, hashes: Sequence[bytes]) -> list[Receipt]:
    """The receipts of those transactions that are mined."""
    found = []
    for start in range(0, len(hashes), _BATCH):
        some = hashes[start : start + _BATCH]
        for answer in await rpc.batch([Call("eth_getTransactionReceipt", ("0x" + h.hex(),)) for h in some]):
            if isinstance(answer, RpcError):
                raise answer
            raw = decode_result(answer, _Receipt | None, "eth_getTransactionReceipt")  # type: ignore[arg-type] # a union is a type to msgspec
            if raw is not None:
                found.append(_read(raw))
    return found


def _read(raw: _Receipt) -> Receipt:
    return Receipt(
        bytes.fromhex(raw.transactionHash[2:]),
        quantity(raw.blockNumber),
        bytes.fromhex(raw.blockHash[2:]),
        quantity(raw.status) == 1,
        tuple(raw.logs),
    )
