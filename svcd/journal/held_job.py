"""Job held by this provider, and the values that the stages pass on."""

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
from svcd.journal.work import BundleWork, ModelWork, WorkOutput

# A signed claim is valid for 600 seconds. The rest is a margin for clock differences.
CLAIM_LIFETIME_S: Final = 660.0


@attrs.define(slots=True, eq=False)
class Ahead:
    """Pending claim of a job that is already running.

    `at_stake` is the payment at risk, in base units. `release_stake` is called once, when the outcome of the claim or
    of the job is known.
    """

    at_stake: int
    release_stake: Callable[[], None]
    confirmed: bool = False
    _refusal: str | None = None
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def decided(self) -> bool:
        return self.confirmed or self._refusal is not None

    def confirm(self) -> None:
        if self.decided:
            return
        self.confirmed = True
        metrics.jobs_ahead.labels("claimed").inc()
        self.release_stake()

    def refuse(self, why: str) -> None:
        """Record that the claim failed, and cancel the work."""
        if self.decided:
            return
        self._refusal = why
        metrics.jobs_ahead.labels("unpaid").inc()
        metrics.unpaid_amount.inc(self.at_stake)
        self.release_stake()
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Wrap work to cancel if the claim is refused. Cancelled work raises `WorkFailed` (`unpaid`)."""
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
    """Claimed job. `sla_ends` is the loop time until which the chain accepts a settle.

    After a reorg, the next mined claim starts a new window, which moves `sla_ends`.
    """

    job: Job
    model: str
    slot: Slot
    sla_ends: float
    recovered: bool = False  # resumed from an earlier run
    ahead: Ahead | None = None  # set for a job that runs before its claim is in a block

    @property
    def held(self) -> "ClaimedJob":
        """Return the job itself, as the later stages' values return the job they hold."""
        return self

    @property
    def claimed_at(self) -> float:
        """Return the loop time when the claim was sent, or the time of its block once that was looked up."""
        return self.sla_ends - self.job.sla_secs

    @property
    def claim_dies(self) -> float:
        """Return the loop time after which a claim removed by a reorg can no longer be mined again."""
        return self.claimed_at + CLAIM_LIFETIME_S

    @property
    def was_claimed(self) -> bool:
        """Return True if a claim of the job was in a block, even one that a reorg removed later."""
        return self.ahead is None or self.ahead.confirmed

    def in_window_of(self, claimed_at: float) -> "ClaimedJob":
        """Return the job with the window of a claim at that loop time, if it ends later than the current window."""
        ends = claimed_at + self.job.sla_secs
        return self if ends <= self.sla_ends else attrs.evolve(self, sla_ends=ends)

    def work(self) -> AbstractContextManager[None]:
        """Wrap each step. The work is cancelled if the claim is refused."""
        return nullcontext() if self.ahead is None else self.ahead.work()

    @property
    def name(self) -> str:
        """Return the job's id as logs and routes write it."""
        return "0x" + self.job.job_id.hex()


@attrs.frozen(slots=True, eq=False)
class Opened:
    held: ClaimedJob
    work: ModelWork | BundleWork
    result_key: PublicKey


@attrs.frozen(slots=True, eq=False)
class Finished:
    held: ClaimedJob
    output: WorkOutput
    result_key: PublicKey
    started: float


@attrs.frozen(slots=True, eq=False)
class SealedJob:
    """Job with its sealed result in the journal.

    `result` repeats a small result, and `result_cid` is the content id of an uploaded one. `started` is None for a job
    that an earlier process ran.
    """

    held: ClaimedJob
    completion_tok: int
    length: int
    result: bytes | None = attrs.field(default=None, repr=False)
    result_cid: str | None = None
    started: float | None = None


@attrs.frozen(slots=True, eq=False)
class Failing:
    """Job to fail on the chain. The journal already has `reason`."""

    held: ClaimedJob
    reason: str
