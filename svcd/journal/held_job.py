"""Jobs in the pipeline. Each class is the value that one stage passes to the next."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import attrs
import trio

from common.box import PublicKey
from svcd.base import metrics
from svcd.base.end_reasons import UNPAID, WorkFailed
from svcd.journal.book_row import Job
from svcd.journal.slots import Slot
from svcd.journal.work import BundleWork, ModelWork, TabWork, WorkOutput

# A signed claim is valid for 600 seconds. The rest is a margin for clock differences.
CLAIM_LIFETIME_S: Final = 660.0


@attrs.define(slots=True, eq=False)
class PendingClaim:
    """Pending claim of a job that is already running.

    `amount_at_stake` is the payment at risk, in base units. `release_stake` is called once, when the outcome of the
    claim or the job is known.
    """

    amount_at_stake: int
    release_stake: Callable[[], None]
    is_confirmed: bool = False
    _refusal: str | None = None
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def is_decided(self) -> bool:
        return self.is_confirmed or self._refusal is not None

    def confirm(self) -> None:
        if self.is_decided:
            return
        self.is_confirmed = True
        metrics.jobs_ahead.labels("claimed").inc()
        self.release_stake()

    def refuse(self, reason: str) -> None:
        """Record that the claim failed, and cancel the work."""
        if self.is_decided:
            return
        self._refusal = reason
        metrics.jobs_ahead.labels("unpaid").inc()
        metrics.unpaid_amount.inc(self.amount_at_stake)
        self.release_stake()
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def cancel_if_refused(self) -> Iterator[None]:
        """Cancel the code in this context if the claim is refused, and then raise `WorkFailed` (`unpaid`)."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._refusal is not None:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise WorkFailed(UNPAID, f"the claim was refused: {self._refusal}")


@attrs.frozen(slots=True, eq=False)
class ClaimedJob:
    """Claimed job. `window_ends_at` is the loop time until which the chain accepts a settle.

    After a reorg, the next mined claim starts a new window, which moves `window_ends_at`.
    """

    job: Job
    model: str
    slot: Slot
    window_ends_at: float
    is_recovered: bool = False  # resumed from an earlier run
    pending_claim: PendingClaim | None = None  # set for a job that runs before its claim is in a block
    trace_context: str | None = None  # trace context for the spans of the stages; None for a recovered job

    @property
    def claimed_job(self) -> "ClaimedJob":
        """Return this job. Later stages pass values that contain the claimed job in a field of this name."""
        return self

    @property
    def claimed_at(self) -> float:
        """Return the loop time of the claim's block. Until the block is known, return when the claim was sent."""
        return self.window_ends_at - self.job.sla_secs

    @property
    def claim_expires_at(self) -> float:
        """Return the loop time after which the signed claim can no longer be mined, for example after a reorg."""
        return self.claimed_at + CLAIM_LIFETIME_S

    @property
    def was_claimed(self) -> bool:
        """Return True if a claim of the job was in a block, even if a reorg removed it later."""
        return self.pending_claim is None or self.pending_claim.is_confirmed

    def with_window_from(self, claimed_at: float) -> "ClaimedJob":
        """Return the job with a window from `claimed_at`, if this window ends later than the current window."""
        ends = claimed_at + self.job.sla_secs
        return self if ends <= self.window_ends_at else attrs.evolve(self, window_ends_at=ends)

    def cancel_if_refused(self) -> AbstractContextManager[None]:
        """Return a context for one step. If the claim is refused, the context cancels the step."""
        return nullcontext() if self.pending_claim is None else self.pending_claim.cancel_if_refused()

    @property
    def hex_id(self) -> str:
        """Return the job's id in hex with 0x, for logs and routes."""
        return "0x" + self.job.job_id.hex()


@attrs.frozen(slots=True, eq=False)
class OpenedJob:
    claimed_job: ClaimedJob
    work: ModelWork | BundleWork | TabWork
    result_key: PublicKey


@attrs.frozen(slots=True, eq=False)
class FinishedJob:
    claimed_job: ClaimedJob
    output: WorkOutput
    result_key: PublicKey
    started_at: float


@attrs.frozen(slots=True, eq=False)
class SealedJob:
    """Job with its sealed result in the journal.

    `result` is the sealed result if it is small and was sealed by this process. `result_cid` is the content id of an
    uploaded result. `started_at` is None for a job that an earlier process ran.
    """

    claimed_job: ClaimedJob
    completion_tok: int
    result_length: int
    result: bytes | None = attrs.field(default=None, repr=False)
    result_cid: str | None = None
    started_at: float | None = None


@attrs.frozen(slots=True, eq=False)
class FailingJob:
    """Job to fail on the chain. The journal already has `reason`."""

    claimed_job: ClaimedJob
    reason: str
