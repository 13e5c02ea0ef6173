"""How many blocks to ask logs for at once: what the node allows, and what suits our own pipeline.

A node that refuses a range mostly says what it would take; where it does not, the range is halved. The limit is
remembered and tried again only after a long run of successes, because each provider's limits are its own and some
count results, not blocks. Below the limit, the width follows the density of events: ranges of some thousand events keep
fetching, decoding and writing busy at once, larger ones make them wait for each other.
"""

import re
from typing import Final

EVENTS_PER_RANGE: Final = 4000
FIRST_WIDTH: Final = 16
_PATIENCE: Final = 64  # successes at the limit before a wider range is tried

_HEX_RANGE: Final = re.compile(r"\[?\s*(0x[0-9a-f]+)\s*(?:,|-|to|and|\.\.)\s*(0x[0-9a-f]+)", re.IGNORECASE)
_RETRY_RANGE: Final = re.compile(r"\brange:? \[?(\d{1,19})\s*(?:,|-)\s*(\d{1,19})", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\b(\d[\d,_]{0,19})\s*(k\b)?", re.IGNORECASE)


def hinted_width(message: str, asked: int) -> int | None:
    """A width below the one asked for that a refusal suggests, if it does.

    Either it names a range that would work, or the limit is the largest of its numbers that the request exceeded:
    the wordings are too many for patterns. A limit on results that is taken for one on blocks does no harm, since
    something below the width asked for had to be tried anyway.
    """
    if found := _HEX_RANGE.search(message):
        works = int(found[2], 16) - int(found[1], 16) + 1
    elif found := _RETRY_RANGE.search(message):
        works = int(found[2]) - int(found[1]) + 1
    else:
        works = 0
    if 0 < works < asked:
        return works
    numbers = [
        int(digits.replace(",", "").replace("_", "")) * (1000 if thousands else 1)
        for digits, thousands in _NUMBER.findall(message)
    ]
    return max((number for number in numbers if 0 < number < asked), default=None)


class RangeWidth:
    """The width to ask for next. `cap` is the operator's; it is never passed."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._limit = cap  # what the node is known to take
        self._wanted = float(min(FIRST_WIDTH, cap))
        self._successes = 0

    @property
    def blocks(self) -> int:
        return max(1, min(int(self._wanted), self._limit))

    def took(self, blocks: int, events: int) -> None:
        """A range was answered."""
        fitting = blocks * EVENTS_PER_RANGE / max(1, events)
        self._wanted = max(1.0, min(fitting, 2.0 * max(self._wanted, blocks), float(self._cap)))
        if blocks >= self._limit < self._cap:
            self._successes += 1
            if self._successes >= _PATIENCE:
                self._successes = 0
                self._limit = min(self._cap, self._limit + max(1, self._limit // 4))

    def refused(self, blocks: int, message: str) -> None:
        """A range was too wide for the node."""
        self._limit = max(1, min(self._limit, hinted_width(message, blocks) or blocks // 2))
        self._successes = 0

    def struggled(self, blocks: int) -> None:
        """No answer came: perhaps the range was too much work. Go on with less, but remember nothing."""
        self._wanted = max(1.0, min(self._wanted, blocks / 2))
