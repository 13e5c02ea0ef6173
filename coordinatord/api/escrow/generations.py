"""Life of escrow keys (generations). Times are Unix milliseconds.

    minted          announced_from            announced_from of the next           + RETENTION_MS
    │── lead ──────│── announced ────────────│── retired, opens still ────────────│ erased

A generation is minted before it is announced, so that all peers can pull it in time.
"""

from collections.abc import Iterable
from typing import Final

import attrs

from coordinatord.api.escrow.keys import KeyPair

_DAY_MS: Final = 86_400_000
_RETENTION_MARGIN_MS: Final = 3_600_000
# Time from the retirement of a key to its erasure. A client may keep the key for a while before it posts, the order
# lives for up to a day, and the window after its claim for up to another day.
RETENTION_MS: Final = _DAY_MS + _DAY_MS + _RETENTION_MARGIN_MS


@attrs.frozen(slots=True)
class Generation:
    key: KeyPair
    announced_from_ms: int

    @property
    def public_key(self) -> bytes:
        return self.key.public.raw


class Generations:
    """Generations held by one instance."""

    def __init__(self, rotate_every_ms: int, lead_ms: int) -> None:
        self._rotate_every_ms = rotate_every_ms
        self._lead_ms = lead_ms
        # Oldest first.
        self._held: list[Generation] = []

    def __len__(self) -> int:
        return len(self._held)

    def oldest_first(self) -> tuple[Generation, ...]:
        """Return the generations, oldest first."""
        return tuple(self._held)

    def keys_newest_first(self) -> Iterable[KeyPair]:
        """Return the keys, newest first, because most wraps are sealed to a new key."""
        return (generation.key for generation in reversed(self._held))

    def add(self, generations: Iterable[Generation]) -> list[Generation]:
        """Add generations. Return the new ones, and wipe the copies of those already held."""
        known = {generation.public_key for generation in self._held}
        fresh = []
        for generation in generations:
            if generation.public_key in known:
                generation.key.erase()
                continue
            known.add(generation.public_key)
            fresh.append(generation)
        # All instances sort equal generations in the same order.
        self._held = sorted(self._held + fresh, key=lambda one: (one.announced_from_ms, one.public_key))
        return fresh

    def newest_announced(self, now: int) -> Generation | None:
        """Return the newest generation that is due for announcement, or the first one if none is due."""
        announced = [generation for generation in self._held if generation.announced_from_ms <= now]
        return announced[-1] if announced else next(iter(self._held), None)

    def is_due(self, now: int) -> bool:
        """Return True when the next generation must be minted."""
        return not self._held or self._held[-1].announced_from_ms + self._rotate_every_ms - self._lead_ms <= now

    def is_overdue(self, now: int) -> bool:
        """Return True when a successor of the newest generation should be announced, but none was minted."""
        return not self._held or self._held[-1].announced_from_ms + self._rotate_every_ms <= now

    def mint(self, now: int) -> Generation:
        """Return a new generation. The caller records it and then calls `add`."""
        next_start = self._held[-1].announced_from_ms + self._rotate_every_ms if self._held else now
        return Generation(KeyPair.generate(), max(now, next_start))

    def find_expired(self, now: int) -> list[Generation]:
        """Return the generations whose successor was announced so long ago that no claimable order can be sealed to
        them."""
        return [
            generation
            for generation, successor in zip(self._held, self._held[1:], strict=False)
            if successor.announced_from_ms + RETENTION_MS <= now
        ]

    def erase(self, generations: Iterable[Generation]) -> None:
        gone = {generation.public_key for generation in generations}
        for generation in self._held:
            if generation.public_key in gone:
                generation.key.erase()
        self._held = [generation for generation in self._held if generation.public_key not in gone]

    def erase_all(self) -> None:
        self.erase(self.oldest_first())
