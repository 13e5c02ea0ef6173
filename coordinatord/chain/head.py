"""Recent blocks of the chain, to classify a new block as next, same, ahead, behind or fork. Used by the relayer and the
indexer."""

import enum
from collections import OrderedDict


class BlockPosition(enum.Enum):
    """Position of a block relative to the blocks that ChainHead remembers."""

    SAME = "the same block as the remembered head"
    NEXT = "the child of the head"
    AHEAD = "above the head, with blocks between that were not seen"
    BEHIND = "an ancestor of the head, or below all remembered blocks: this node lags"
    FORK = "on another branch than the remembered blocks"


class ChainHead:
    """Numbers and hashes of the last `max_blocks` blocks."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._hashes: OrderedDict[int, str] = OrderedDict()

    @property
    def head_number(self) -> int | None:
        return next(reversed(self._hashes), None)

    @property
    def head_hash(self) -> str | None:
        return None if self.head_number is None else self._hashes[self.head_number]

    def classify(self, number: int, block_hash: str, parent_hash: str) -> BlockPosition:
        """Return the position of this block relative to the remembered blocks."""
        head = self.head_number
        if head is None or number > head + 1:
            return BlockPosition.AHEAD
        if number == head + 1:
            return BlockPosition.NEXT if self._hashes[head] == parent_hash else BlockPosition.FORK
        known = self._hashes.get(number)
        if known is None:
            return BlockPosition.BEHIND
        if known != block_hash:
            return BlockPosition.FORK
        return BlockPosition.SAME if number == head else BlockPosition.BEHIND

    def add(self, number: int, block_hash: str) -> None:
        """Append a child of the head."""
        self._hashes[number] = block_hash
        while len(self._hashes) > self._max_blocks:
            self._hashes.popitem(last=False)

    def restart(self, number: int, block_hash: str) -> None:
        """Forget all blocks and start again at this block."""
        self._hashes.clear()
        self.add(number, block_hash)

    def forget_above(self, number: int) -> None:
        """Forget every block above `number`."""
        while self._hashes and next(reversed(self._hashes)) > number:
            self._hashes.popitem()
