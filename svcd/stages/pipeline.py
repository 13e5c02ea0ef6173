"""Channels between the stages, and the ways a job leaves them.

    claimer ─► opener ─► runner (one per model) ─► sealer ─┬─────────────► settler
                                                           └─► uploader ──────┘
    any of them ─► failer

Every job leaves through `Pipeline`, which frees its slot and updates the metrics.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol, TypeVar

import attrs
import structlog
import trio

from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob, Failing, Finished, Opened, SealedJob
from svcd.journal.journal import Journal
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.offers import Exclusions

log = structlog.get_logger(__name__)

_RECOVERED_JOBS: Final = 64
_ESCROW_FAILURES: Final = frozenset({"escrow_unavailable", "escrow_unreachable"})


class HasClaimedJob(Protocol):
    """Item of a channel."""

    @property
    def held(self) -> ClaimedJob: ...


T = TypeVar("T", bound=HasClaimedJob)


@attrs.frozen(slots=True, eq=False)
class Pipeline:
    journal: Journal
    exclusions: Exclusions
    to_open: DeadlineChannel[ClaimedJob]
    to_run: dict[str, DeadlineChannel[Opened]]
    to_seal: DeadlineChannel[Finished]
    to_upload: DeadlineChannel[SealedJob]
    to_settle: DeadlineChannel[SealedJob]
    to_fail: DeadlineChannel[Failing]

    @classmethod
    def of(cls, journal: Journal, exclusions: Exclusions, slots: dict[str, int]) -> "Pipeline":
        """Create channels with room for every slot, and for jobs recovered from an earlier run beyond that.

        Jobs are sorted by deadline only inside a channel, so a full channel would delay urgent jobs.
        """
        every = sum(slots.values()) + _RECOVERED_JOBS
        return cls(
            journal=journal,
            exclusions=exclusions,
            to_open=DeadlineChannel(every),
            to_run={model: DeadlineChannel(every) for model in slots},
            to_seal=DeadlineChannel(every),
            to_upload=DeadlineChannel(every),
            to_settle=DeadlineChannel(every),
            to_fail=DeadlineChannel(every),
        )

    async def serve(self, channel: DeadlineChannel[T], step: Callable[[T], Awaitable[None]]) -> NoReturn:
        """Run one worker of a stage. A failed step ends only its own job."""
        while True:
            item = await channel.receive()
            try:
                await self._work(item, step)
            except Exception:
                item.held.slot.give_back()  # the reconciler finds the job in the journal and resumes it
                raise

    async def _work(self, item: T, step: Callable[[T], Awaitable[None]]) -> None:
        try:
            with item.held.work():
                await step(item)
        except WorkFailed as failure:
            await self.give_up(item.held, failure)
        except Exception as bug:  # the specification's `internal_error`: counted and logged as our fault
            log.exception("stage failed unexpectedly", job=item.held.name)
            await self.give_up(item.held, WorkFailed("internal_error", type(bug).__name__))

    async def give_up(self, held: ClaimedJob, failure: WorkFailed) -> None:
        if failure.reason in _ESCROW_FAILURES:
            self.exclusions.pause_open_bids()
        log.warning("job given up", job=held.name, model=held.model, reason=failure.reason, detail=failure.detail)
        if failure.sends_fail:
            await self.journal.failing(held.job.job_id, failure.reason)
            await self.to_fail.send(held.sla_ends, Failing(held, failure.reason))
        else:
            await self.left(held, failure.reason)

    async def left(self, held: ClaimedJob, reason: str) -> None:
        """Record that the job was given up without a confirmed fail. Its owner can reclaim it after the SLA."""
        await self.journal.ended(held.job.job_id, "given_up", reason)
        self._ended_without_settle(held, reason)

    async def failed(self, held: ClaimedJob, reason: str) -> None:
        """Record that the chain accepted the fail."""
        await self.journal.ended(held.job.job_id, "failed", reason)
        if held.ahead is not None:
            held.ahead.confirm()
        self._ended_without_settle(held, reason)

    async def settled(self, held: ClaimedJob, started: float | None) -> None:
        await self.journal.ended(held.job.job_id, "settled")
        if held.ahead is not None:
            held.ahead.confirm()
        metrics.jobs_settled.inc()
        if started is not None:
            metrics.job_duration.observe(trio.current_time() - started)
        held.slot.give_back(settled=True)
        log.info("job settled", job=held.name, model=held.model)

    def _ended_without_settle(self, held: ClaimedJob, reason: str) -> None:
        if held.ahead is not None:  # has no effect if the claim's outcome is already known
            held.ahead.refuse(reason)
        metrics.jobs_failed.labels(reason).inc()
        self.exclusions.add(held.job.job_id, held.job.expires_at)
        held.slot.give_back()
        log.info("job ended without settle", job=held.name, model=held.model, reason=reason)
