"""Job that the provider holds: what each stage adds to it for the next."""

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
from svcd.journal.work import ModelWork, WorkOutput


@attrs.define(slots=True, eq=False)
class Ahead:
    """A claim that is under way, of a job that is worked on already. `at_stake`: what the work would be paid with, in
    base units. `over` is called once: when the claim's end is known, or else the job's."""

    at_stake: int
    over: Callable[[], None]
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
        self.over()

    def refuse(self, why: str) -> None:
        """The claim came to nothing, and the work with it."""
        if self.decided:
            return
        self._refusal = why
        metrics.jobs_ahead.labels("unpaid").inc()
        metrics.unpaid_amount.inc(self.at_stake)
        self.over()
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Round work that ends as `WorkFailed` (`unpaid`) when the claim is refused."""
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


# A signed claim is good for 600 seconds, so one that is not on the chain after this never will be.
CLAIM_DEAD_AFTER: Final = 660.0


@attrs.frozen(slots=True, eq=False)
class ClaimedJob:
    """`sla_ends` is in the loop's time: the last moment at which the chain takes a settle. It moves when a
    reorganisation takes the claim: the one that comes then begins a window of its own."""

    job: Job
    model: str
    slot: Slot
    sla_ends: float
    recovered: bool = False  # found held at start, not claimed by this run
    ahead: Ahead | None = None  # of a job that is run before its claim is in a block

    @property
    def held(self) -> "ClaimedJob":
        """As on what the later stages make of it."""
        return self

    @property
    def claimed_at(self) -> float:
        """In the loop's time; a little before the chain's."""
        return self.sla_ends - self.job.sla_secs

    @property
    def claim_dies(self) -> float:
        """In the loop's time: a claim that is off the chain then, after a reorganisation, does not come back."""
        return self.claimed_at + CLAIM_DEAD_AFTER

    @property
    def was_claimed(self) -> bool:
        """Whether a claim of it is known to have been in a block, whatever became of that block."""
        return self.ahead is None or self.ahead.confirmed

    def in_window_of(self, claimed_at: float) -> "ClaimedJob":
        """With the window that a claim at that moment of the loop's time begins; a longer one is kept."""
        ends = claimed_at + self.job.sla_secs
        return self if ends <= self.sla_ends else attrs.evolve(self, sla_ends=ends)

    def work(self) -> AbstractContextManager[None]:
        """Round each step: it ends when there is nothing to be had for it any more."""
        return nullcontext() if self.ahead is None else self.ahead.work()

    @property
    def name(self) -> str:
        """As logs and routes write the job."""
        return "0x" + self.job.job_id.hex()


@attrs.frozen(slots=True, eq=False)
class Opened:
    held: ClaimedJob
    work: ModelWork
    result_key: PublicKey


@attrs.frozen(slots=True, eq=False)
class Finished:
    held: ClaimedJob
    output: WorkOutput
    result_key: PublicKey
    started: float


@attrs.frozen(slots=True, eq=False)
class SealedJob:
    """The sealed bytes are in the journal; small ones are here too. `result_cid`: where large ones were uploaded.

    `started` is None for a job whose run belongs to an earlier process.
    """

    held: ClaimedJob
    completion_tok: int
    length: int
    result: bytes | None = attrs.field(default=None, repr=False)
    result_cid: str | None = None
    started: float | None = None


@attrs.frozen(slots=True, eq=False)
class Failing:
    """To be failed on the chain; the journal has the reason."""

    held: ClaimedJob
    reason: str
