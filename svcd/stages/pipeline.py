"""Connect the stages with channels, and record how each job ends.

claimer ─► opener ─► runner (one per model) ─► sealer ─┬─────────────► settler
                                                           └─► uploader ──────┘
    any of them ─► failer

Every job ends in a method of `Pipeline`, which frees the job's slot and updates the metrics.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol, TypeVar

import attrs
import structlog
import trio

from common.tracing import spans
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob, FailingJob, FinishedJob, OpenedJob, SealedJob
from svcd.journal.journal import Journal
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.offers import Exclusions

log = structlog.get_logger(__name__)

_MAX_RECOVERED_JOBS: Final = 64
_ESCROW_FAILURES: Final = frozenset({"escrow_unavailable", "escrow_unreachable"})


class HasClaimedJob(Protocol):
    """Item of a channel. Every item refers to a held job."""

    @property
    def claimed_job(self) -> ClaimedJob: ...


T = TypeVar("T", bound=HasClaimedJob)


@attrs.frozen(slots=True, eq=False)
class Pipeline:
    journal: Journal
    exclusions: Exclusions
    to_open: DeadlineChannel[ClaimedJob]
    to_run: dict[str, DeadlineChannel[OpenedJob]]
    to_seal: DeadlineChannel[FinishedJob]
    to_upload: DeadlineChannel[SealedJob]
    to_settle: DeadlineChannel[SealedJob]
    to_fail: DeadlineChannel[FailingJob]

    @classmethod
    def create(cls, journal: Journal, exclusions: Exclusions, slots: dict[str, int]) -> "Pipeline":
        """Create channels with room for every slot, and for jobs recovered from an earlier run.

        Only jobs inside a channel are sorted by deadline, so a full channel would delay urgent jobs.
        """
        capacity = sum(slots.values()) + _MAX_RECOVERED_JOBS
        return cls(
            journal=journal,
            exclusions=exclusions,
            to_open=DeadlineChannel(capacity),
            to_run={model: DeadlineChannel(capacity) for model in slots},
            to_seal=DeadlineChannel(capacity),
            to_upload=DeadlineChannel(capacity),
            to_settle=DeadlineChannel(capacity),
            to_fail=DeadlineChannel(capacity),
        )

    async def serve(self, stage: str, channel: DeadlineChannel[T], step: Callable[[T], Awaitable[None]]) -> NoReturn:
        """Run one worker of a stage. A failed step ends only its own job. `stage` is the name of the trace spans."""
        while True:
            item = await channel.receive()
            try:
                with spans.span(
                    stage,
                    parent=item.claimed_job.trace_context,
                    job=item.claimed_job.hex_id,
                    model=item.claimed_job.model,
                ):
                    await self._run_step(item, step)
            except Exception:
                item.claimed_job.slot.release()  # the reconciler resumes the job from the journal
                raise

    async def _run_step(self, item: T, step: Callable[[T], Awaitable[None]]) -> None:
        try:
            with item.claimed_job.cancel_if_refused():
                await step(item)
        except WorkFailed as failure:
            spans.mark_failed(failure.reason)
            await self.give_up(item.claimed_job, failure)
        except Exception as bug:  # the specification's `internal_error`, which counts as svcd's fault
            log.exception("stage failed unexpectedly", job=item.claimed_job.hex_id)
            spans.mark_failed(type(bug).__name__)
            await self.give_up(item.claimed_job, WorkFailed("internal_error", type(bug).__name__))

    async def give_up(self, held: ClaimedJob, failure: WorkFailed) -> None:
        if failure.reason in _ESCROW_FAILURES:
            self.exclusions.pause_open_bids()
        log.warning("job given up", job=held.hex_id, model=held.model, reason=failure.reason, detail=failure.detail)
        if failure.sends_fail:
            await self.journal.record_failing(held.job.job_id, failure.reason)
            await self.to_fail.send(held.window_ends_at, FailingJob(held, failure.reason))
        else:
            await self.record_given_up(held, failure.reason)

    async def record_given_up(self, held: ClaimedJob, reason: str) -> None:
        """Record that svcd gave up the job without a confirmed fail. The owner can reclaim the job after its window."""
        await self.journal.record_end(held.job.job_id, "given_up", reason)
        self._record_end(held, reason)

    async def record_failed(self, held: ClaimedJob, reason: str) -> None:
        """Record that the chain accepted the fail."""
        await self.journal.record_end(held.job.job_id, "failed", reason)
        if held.pending_claim is not None:
            held.pending_claim.confirm()
        self._record_end(held, reason)

    async def record_settled(self, held: ClaimedJob, started: float | None) -> None:
        await self.journal.record_end(held.job.job_id, "settled")
        if held.pending_claim is not None:
            held.pending_claim.confirm()
        metrics.jobs_settled.inc()
        if started is not None:
            metrics.job_duration.observe(trio.current_time() - started)
        held.slot.release(settled=True)
        log.info("job settled", job=held.hex_id, model=held.model)

    def _record_end(self, held: ClaimedJob, reason: str) -> None:
        if held.pending_claim is not None:  # has no effect if the claim's outcome is already known
            held.pending_claim.refuse(reason)
        metrics.jobs_failed.labels(reason).inc()
        self.exclusions.exclude(held.job.job_id, held.job.expires_at)
        held.slot.release()
        log.info("job ended without settle", job=held.hex_id, model=held.model, reason=reason)
