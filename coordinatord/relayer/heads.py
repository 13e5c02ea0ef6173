"""Following the head: what a newly seen block is to the blocks seen before."""

import enum
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Self

import attrs
import msgspec

from coordinatord.chain.blocks import Hash, Quantity
from coordinatord.chain.rpc import Call, Rpc, decode_result, quantity
from coordinatord.relayer.fees import next_base_fee

WINDOW: Final = 256  # blocks that are remembered; a reorg deeper than that is beyond every node's journal


class _Block(msgspec.Struct):
    number: Quantity
    hash: Hash
    parentHash: Hash  # noqa: N815 - the node's names
    gasLimit: str  # noqa: N815
    gasUsed: str  # noqa: N815
    transactions: list[Hash]
    baseFeePerGas: str = "0x0"  # noqa: N815


@attrs.frozen(slots=True)
class Block:
    number: int
    hash: str
    parent: str
    gas_limit: int
    next_base_fee: int
    transactions: tuple[str, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, raw: _Block) -> Self:
        limit = quantity(raw.gasLimit)
        return cls(
            quantity(raw.number),
            raw.hash,
            raw.parentHash,
            limit,
            next_base_fee(quantity(raw.baseFeePerGas), quantity(raw.gasUsed), limit),
            tuple(raw.transactions),
        )


async def latest_block(rpc: Rpc) -> Block:
    return Block.of(await rpc.call_as(_Block, "eth_getBlockByNumber", "latest", False))


async def blocks_by_number(rpc: Rpc, numbers: Sequence[int]) -> list[Block | None]:
    """None where the node has no such block (yet)."""
    answers = await rpc.batch([Call("eth_getBlockByNumber", (hex(number), False)) for number in numbers])
    blocks: list[Block | None] = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        raw = decode_result(answer, _Block | None, "eth_getBlockByNumber")  # type: ignore[arg-type] # a union is a type to msgspec
        blocks.append(Block.of(raw) if raw is not None else None)
    return blocks


class Place(enum.Enum):
    SAME = "the head as before"
    NEXT = "the child of the head"
    AHEAD = "above the head, with blocks between them not seen"
    BEHIND = "an ancestor: this node lags behind one that answered before"
    FORK = "another branch than what was seen"


class SeenBlocks:
    """The hashes of the last blocks seen."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, str] = OrderedDict()

    @property
    def head(self) -> int | None:
        return next(reversed(self._hashes), None)

    @property
    def head_hash(self) -> str | None:
        return None if self.head is None else self._hashes[self.head]

    def place(self, block: Block) -> Place:
        head = self.head
        if head is None:
            return Place.AHEAD
        if block.number > head + 1:
            return Place.AHEAD
        if block.number == head + 1:
            return Place.NEXT if self._hashes[head] == block.parent else Place.FORK
        if self._hashes.get(block.number) != block.hash:
            return Place.FORK
        return Place.SAME if block.number == head else Place.BEHIND

    def follows(self, block: Block) -> bool:
        """Whether a block whose parent was seen names that parent."""
        return self._hashes.get(block.number - 1) == block.parent

    def add(self, block: Block) -> None:
        self._hashes[block.number] = block.hash
        while len(self._hashes) > WINDOW:
            self._hashes.popitem(last=False)

    def restart(self, block: Block) -> None:
        """After a fork: only this block is known to be of the branch."""
        self._hashes.clear()
        self.add(block)
