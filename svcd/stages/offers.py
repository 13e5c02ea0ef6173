"""Jobs offered to the claimers, and exclusions: jobs and models for which svcd sends no claims for a while."""

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from svcd.base.clock import Clock
from svcd.journal.book_row import Job
from svcd.journal.slots import Slot

# Pauses after a refused claim, because an immediate retry would also be refused.
_PROVIDER_REFUSAL_PAUSE_S: Final = 10.0
_JOB_REFUSAL_PAUSE_S: Final = 30.0
_ESCROW_PAUSE_S: Final = 300.0  # after a failed key release, because other open bids would fail as well
_MAX_ORDER_LIFETIME_S: Final = 2 * 86_400


@attrs.define(slots=True, eq=False)
class Exclusions:
    """Jobs, models and open bids for which svcd sends no claims for a while."""

    clock: Clock
    _excluded_until: dict[bytes, float] = attrs.field(factory=dict)  # Unix seconds
    _briefly_excluded_until: dict[bytes, float] = attrs.field(factory=dict)  # loop time
    _paused_until: dict[str, float] = attrs.field(factory=dict)  # loop time
    _open_bids_paused_until: float = 0.0

    def exclude_earlier_jobs(self, job_ids: Iterable[bytes]) -> None:
        """Exclude jobs that an earlier run of the daemon claimed and did not settle."""
        for job_id in job_ids:
            self._excluded_until[job_id] = self.clock.unix_time() + _MAX_ORDER_LIFETIME_S

    def exclude(self, job_id: bytes, expires_at: float) -> None:
        """Exclude a job until its order expires."""
        now = self.clock.unix_time()
        self._excluded_until = {known: until for known, until in self._excluded_until.items() if until > now}
        self._excluded_until[job_id] = expires_at

    def exclude_briefly(self, job_id: bytes) -> None:
        """Exclude a job briefly, after a refusal that may be temporary.

        Examples are a paused token, an owner short of funds, or a reorg between the post and the claim.
        """
        now = trio.current_time()
        self._briefly_excluded_until = {
            known: until for known, until in self._briefly_excluded_until.items() if until > now
        }
        self._briefly_excluded_until[job_id] = now + _JOB_REFUSAL_PAUSE_S

    def __contains__(self, job_id: bytes) -> bool:
        if (until := self._briefly_excluded_until.get(job_id)) is not None and until > trio.current_time():
            return True
        return self._excluded_until.get(job_id, 0.0) > self.clock.unix_time()

    def pause_model(self, model: str) -> None:
        self._paused_until[model] = trio.current_time() + _PROVIDER_REFUSAL_PAUSE_S

    def is_model_paused(self, model: str) -> bool:
        return trio.current_time() < self._paused_until.get(model, 0.0)

    def pause_open_bids(self) -> None:
        self._open_bids_paused_until = trio.current_time() + _ESCROW_PAUSE_S

    @property
    def open_bids_paused(self) -> bool:
        """Return True while open bids are not claimed, because the escrow failed to release a key."""
        return trio.current_time() < self._open_bids_paused_until


@attrs.frozen(slots=True, eq=False)
class Offer:
    """Job that the coordinator offers to this provider, with the slot taken for the job."""

    job: Job
    model: str
    slot: Slot
    is_pending: bool = False  # the job's post is not in a block yet
    trace_context: str | None = None  # trace context of the poll that returned the job, for the spans of later stages
