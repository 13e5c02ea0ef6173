"""Which nonces to give out, and what is wrong with those that were.

The chain's count is the floor. From there up to the highest nonce given out, every one must have a live transaction of
ours: nothing above a missing one is ever mined.
"""

from collections.abc import Iterable
from typing import Final

import attrs

# Gaps closed in one go: a node that says a floor far too low must not make us sign thousands of self-transfers.
_MOST_SUSPECTS: Final = 256


@attrs.frozen(slots=True)
class Findings:
    """`used`: pending ones of ours below the floor: mined, or lost to somebody else. `suspects`: not pending although
    the chain waits for them. `foreign`: used by somebody else before they were given out. `next`: to give out next."""

    used: tuple[int, ...]
    suspects: tuple[int, ...]
    foreign: range
    next: int


def examine(floor: int, stored_next: int | None, pending: Iterable[int]) -> Findings:
    """`stored_next`: one above the highest nonce ever given out, None for a new account (it starts at the floor,
    and what it did before is no business of ours)."""
    waiting = set(pending)
    following = floor if stored_next is None else stored_next
    last = min(following, floor + len(waiting) + _MOST_SUSPECTS)
    return Findings(
        used=tuple(sorted(nonce for nonce in waiting if nonce < floor)),
        suspects=tuple(nonce for nonce in range(floor, last) if nonce not in waiting),
        foreign=range(following, max(following, floor)),
        next=max(following, floor),
    )
