"""Blocks as the relayer reads them from its node."""

from collections.abc import Sequence
from typing import Final, Self

import attrs
import msgspec

from coordinatord.chain.relayer.fees import next_base_fee
from coordinatord.chain.rpc.chain_data import Hash, Quantity
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_quantity, decode_result

# Number of blocks that are remembered. No reorg is expected to go deeper.
REORG_WINDOW_BLOCKS: Final = 256


class _RawBlock(msgspec.Struct):
    number: Quantity
    hash: Hash
    parentHash: Hash  # noqa: N815 - the node's names
    gasLimit: str  # noqa: N815
    gasUsed: str  # noqa: N815
    transactions: list[Hash]
    baseFeePerGas: str = "0x0"  # noqa: N815


@attrs.frozen(slots=True)
class HeadBlock:
    number: int
    hash: str
    parent_hash: str
    gas_limit: int
    next_base_fee: int
    transactions: tuple[str, ...] = attrs.field(repr=False)

    @classmethod
    def from_raw(cls, raw: _RawBlock) -> Self:
        limit, used = decode_quantity(raw.gasLimit), decode_quantity(raw.gasUsed)
        return cls(
            decode_quantity(raw.number),
            raw.hash,
            raw.parentHash,
            limit,
            next_base_fee(decode_quantity(raw.baseFeePerGas), used, limit),
            tuple(raw.transactions),
        )


async def read_latest_block(rpc: Rpc) -> HeadBlock:
    return HeadBlock.from_raw(await rpc.call_as(_RawBlock, "eth_getBlockByNumber", "latest", False))


async def read_blocks_by_number(rpc: Rpc, numbers: Sequence[int]) -> list[HeadBlock | None]:
    """Return the blocks, with None for blocks that the node does not have (yet)."""
    answers = await rpc.batch([RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in numbers])
    blocks: list[HeadBlock | None] = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        raw = decode_result(answer, _RawBlock | None, "eth_getBlockByNumber")  # type: ignore[arg-type] # a union is a type to msgspec
        blocks.append(HeadBlock.from_raw(raw) if raw is not None else None)
    return blocks


async def find_missing_blocks(rpc: Rpc, blocks: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return the hashes of the blocks, given by number and hash, that are not part of the node's chain."""
    found = await read_blocks_by_number(rpc, [number for number, _ in blocks])
    return [
        block_hash
        for (_, block_hash), block in zip(blocks, found, strict=True)
        if block is None or block.hash != "0x" + block_hash.hex()
    ]
