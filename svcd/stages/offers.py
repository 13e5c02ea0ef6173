"""Offers from the book: the jobs that are left alone, and an offer on its way to a claimer."""

from collections.abc import Iterable
from typing import Final, TypeVar

import attrs
import trio

from svcd.base.clock import Clock
from svcd.journal.book_row import Job
from svcd.journal.slots import Slot

_PAUSE: Final = 10.0  # after a refusal that is about us: the next claim would meet the same
_A_WHILE: Final = 30.0  # after a refusal that is about a job
_NO_ESCROW: Final = 300.0  # after the escrow gave no key: until then each open bid claimed would be failed as well
_FOR_GOOD: Final = 2 * 86_400  # no order is open for longer


@attrs.define(slots=True, eq=False)
class Exclusions:
    clock: Clock
    _until: dict[bytes, float] = attrs.field(factory=dict)  # Unix seconds
    _resting: dict[bytes, float] = attrs.field(factory=dict)  # loop time: a machine's clock may be wrong, and set right
    _paused: dict[str, float] = attrs.field(factory=dict)  # loop time
    _no_escrow_until: float = 0.0

    def remember(self, job_ids: Iterable[bytes]) -> None:
        """Those that an earlier run took on and did not settle."""
        for job_id in job_ids:
            self._until[job_id] = self.clock.wall() + _FOR_GOOD

    def add(self, job_id: bytes, expires_at: float) -> None:
        """Until its order has expired."""
        now = self.clock.wall()
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[job_id] = expires_at

    def for_a_while(self, job_id: bytes) -> None:
        """The chain refused a claim of it for what may pass: a token that is paused, an owner who is short of funds, a
        reorganisation between its post and its claim."""
        now = trio.current_time()
        self._resting = {known: until for known, until in self._resting.items() if until > now}
        self._resting[job_id] = now + _A_WHILE

    def __contains__(self, job_id: bytes) -> bool:
        if (resting := self._resting.get(job_id)) is not None and resting > trio.current_time():
            return True
        return self._until.get(job_id, 0.0) > self.clock.wall()

    def pause(self, model: str) -> None:
        self._paused[model] = trio.current_time() + _PAUSE

    def is_paused(self, model: str) -> bool:
        return trio.current_time() < self._paused.get(model, 0.0)

    def escrow_is_away(self) -> None:
        self._no_escrow_until = trio.current_time() + _NO_ESCROW

    @property
    def without_escrow(self) -> bool:
        """Open bids are not to be claimed: nobody would release their keys."""
        return trio.current_time() < self._no_escrow_until


@attrs.frozen(slots=True, eq=False)
class Offer:
    """A job that was leased to us; its slot is taken."""

    job: Job
    model: str
    slot: Slot
    pending: bool = False  # its post is not in a block yet


T = TypeVar("T")
