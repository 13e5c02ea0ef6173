"""Recent blocks of the chain, and the place of a new block among them. Relayer and indexer keep one each."""

import enum
from collections import OrderedDict


class HeadPlace(enum.Enum):
    """Position of a block relative to the blocks a follower has seen."""

    SAME = "the head as before"
    NEXT = "the child of the head"
    AHEAD = "above the head, with blocks between them not seen"
    BEHIND = "an ancestor of the head, or below all blocks remembered: this node lags"
    FORK = "another branch than what was seen"


class ChainHead:
    """Numbers and hashes of the last `window` blocks that were followed."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._hashes: OrderedDict[int, str] = OrderedDict()

    @property
    def number(self) -> int | None:
        return next(reversed(self._hashes), None)

    @property
    def hash(self) -> str | None:
        return None if self.number is None else self._hashes[self.number]

    def place(self, number: int, block_hash: str, parent_hash: str) -> HeadPlace:
        head = self.number
        if head is None or number > head + 1:
            return HeadPlace.AHEAD
        if number == head + 1:
            return HeadPlace.NEXT if self._hashes[head] == parent_hash else HeadPlace.FORK
        known = self._hashes.get(number)
        if known is None:
            return HeadPlace.BEHIND
        if known != block_hash:
            return HeadPlace.FORK
        return HeadPlace.SAME if number == head else HeadPlace.BEHIND

    def add(self, number: int, block_hash: str) -> None:
        """Move to a child of the head."""
        self._hashes[number] = block_hash
        while len(self._hashes) > self._window:
            self._hashes.popitem(last=False)

    def restart(self, number: int, block_hash: str) -> None:
        """Move to a block of which no ancestor is known."""
        self._hashes.clear()
        self.add(number, block_hash)

    def go_back(self, number: int) -> None:
        """Forget every block above `number`."""
        while self._hashes and next(reversed(self._hashes)) > number:
            self._hashes.popitem()
