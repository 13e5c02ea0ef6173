"""Offers from the book, and the jobs and models that are not claimed for now."""

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from svcd.base.clock import Clock
from svcd.journal.book_row import Job
from svcd.journal.slots import Slot

# Pauses after a refused claim, because an immediate retry would be refused as well.
_PROVIDER_REFUSAL_PAUSE_S: Final = 10.0
_JOB_REFUSAL_PAUSE_S: Final = 30.0
_ESCROW_PAUSE_S: Final = 300.0  # after a failed key release: further open bids would fail as well
_MAX_ORDER_LIFE_S: Final = 2 * 86_400


@attrs.define(slots=True, eq=False)
class Exclusions:
    """Jobs, models and open bids that are not claimed for now."""

    clock: Clock
    _until: dict[bytes, float] = attrs.field(factory=dict)  # Unix seconds
    _skipped: dict[bytes, float] = attrs.field(factory=dict)  # loop time, which clock corrections do not move
    _paused: dict[str, float] = attrs.field(factory=dict)  # loop time
    _escrow_down_until: float = 0.0

    def remember(self, job_ids: Iterable[bytes]) -> None:
        """Exclude jobs that an earlier run claimed and did not settle."""
        for job_id in job_ids:
            self._until[job_id] = self.clock.wall() + _MAX_ORDER_LIFE_S

    def add(self, job_id: bytes, expires_at: float) -> None:
        """Exclude a job until its order expires."""
        now = self.clock.wall()
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[job_id] = expires_at

    def skip(self, job_id: bytes) -> None:
        """Exclude a job briefly, after a refusal that may be temporary.

        Examples are a paused token, an owner short of funds, or a reorg between the post and the claim.
        """
        now = trio.current_time()
        self._skipped = {known: until for known, until in self._skipped.items() if until > now}
        self._skipped[job_id] = now + _JOB_REFUSAL_PAUSE_S

    def __contains__(self, job_id: bytes) -> bool:
        if (resting := self._skipped.get(job_id)) is not None and resting > trio.current_time():
            return True
        return self._until.get(job_id, 0.0) > self.clock.wall()

    def pause(self, model: str) -> None:
        self._paused[model] = trio.current_time() + _PROVIDER_REFUSAL_PAUSE_S

    def is_paused(self, model: str) -> bool:
        return trio.current_time() < self._paused.get(model, 0.0)

    def pause_open_bids(self) -> None:
        self._escrow_down_until = trio.current_time() + _ESCROW_PAUSE_S

    @property
    def open_bids_paused(self) -> bool:
        """Return True while open bids are not claimed because the escrow does not release keys."""
        return trio.current_time() < self._escrow_down_until


@attrs.frozen(slots=True, eq=False)
class Offer:
    """Job leased to this provider, with the slot taken for it."""

    job: Job
    model: str
    slot: Slot
    pending: bool = False  # its post is not in a block yet
