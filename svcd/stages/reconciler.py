"""Compare the journal with the chain at start and every half minute. Resume the jobs that no stage works on.

The job's state on the chain determines the next step. The journal adds only the sealed result and the reason of a
fail.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, NoReturn

import attrs
import structlog
import trio

from common.api.states import JobState
from common.daemon.retries import retry
from common.refusal import Refused
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.end_reasons import WorkFailed
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator
from svcd.journal.book_row import Job
from svcd.journal.entries import JobEntry
from svcd.journal.held_job import CLAIM_LIFETIME_S, ClaimedJob, SealedJob
from svcd.journal.slots import Slots
from svcd.stages.pipeline import Pipeline
from svcd.stages.uploader import needs_upload

log = structlog.get_logger(__name__)

_RECONCILE_INTERVAL_S: Final = 30.0
_MAX_RETRY_PAUSE_S: Final = 5.0  # between two attempts to reach the coordinator
_MAX_CLOCK_DIFFERENCE_S: Final = 60.0  # the chain's time may be ahead of the coordinator's by this much

Verdict = Literal["wait", "not_claimed", "settled", "failed", "claim_expired", "fail", "settle", "work"]


def decide_verdict(entry: JobEntry, job: Job | None, provider_id: int, now: float) -> Verdict:
    """Decide how to resume a live journal entry. `job` is the coordinator's row of the job, or None."""
    if job is not None and job.order != entry.job.order:
        # The owner posted another order under the same id. If this provider claimed that order, fail the job, because a
        # reclaim costs more reputation.
        if job.state == JobState.CLAIMED and job.provider_id == provider_id:
            return "fail"
        job = None
    if job is None or job.state == JobState.OPEN:
        if job is not None and entry.state == "sealed" and now < job.expires_at:
            return "settle"  # a reorg removed the claim; the settler waits for the claim, or claims again
        if now - entry.claim_sent_at < CLAIM_LIFETIME_S:
            return "wait"
        return "not_claimed" if entry.state == "claiming" else "claim_expired"
    if job.provider_id != provider_id:
        return "not_claimed"
    match job.state:
        case JobState.SETTLED:
            return "settled"
        case JobState.CANCELLED:
            return "failed" if entry.state == "failing" else "claim_expired"
    if entry.state == "failing":
        return "fail"
    if now >= job.claimed_at + job.sla_secs:
        return "claim_expired"
    return "settle" if entry.state == "sealed" else "work"


@attrs.define(slots=True, eq=False)
class Reconciler:
    coordinator: Coordinator
    clock: Clock
    provider_id: int
    model_ids: Mapping[str, int]  # of the models in the coordinator's catalogue, by name
    slots: Slots
    pipeline: Pipeline
    on_other_daemon_claim: Callable[[str], None]  # called with the id of each job that another daemon claimed
    _started_at: float = math.inf  # Unix seconds; claims before this time are adopted if the journal lacks them

    async def resume_all(self) -> None:
        """Resume every job of an earlier run. Retry until the coordinator responds."""

        def report(error: Exception) -> None:
            log.warning("held jobs not looked up yet", reason=str(error))

        await retry(self.reconcile_once, on=(Unavailable, Refused), max_wait_s=_MAX_RETRY_PAUSE_S, report=report)
        self._started_at = self.clock.unix_time()

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(_RECONCILE_INTERVAL_S)
            try:
                await self.reconcile_once()
            except (Unavailable, Refused) as error:
                log.warning("held jobs not looked up", reason=str(error))

    async def reconcile_once(self) -> None:
        for entry in await self.pipeline.journal.read_live_entries():
            if not self.slots.holds(entry.job.job_id):
                job = await self.coordinator.read_job(entry.job.job_id)

                # If a stage changed the entry during the lookup, the result of the lookup is stale.
                if await self.pipeline.journal.read_job_state(entry.job.job_id) == entry.state:
                    await self._resume(entry, job)
        claimed = await self.coordinator.read_claimed_jobs(self.provider_id)

        # Read the journal after the list, so that jobs claimed and ended in between are known. An ended job is not
        # adopted, even if a stale index shows the job as claimed.
        unknown = await self.pipeline.journal.find_unknown_jobs([job.job_id for job in claimed])
        for job in claimed:
            if job.job_id in unknown:
                if await self._is_from_another_daemon(job):
                    log.warning("job claimed by another daemon", job="0x" + job.job_id.hex())
                    self.on_other_daemon_claim("0x" + job.job_id.hex())
                else:
                    await self._adopt(job)

    async def _is_from_another_daemon(self, job: Job) -> bool:
        """Return True for a recent claim that is missing in the journal.

        This daemon writes every claim to the journal before it sends the claim. In the second half of the window, the
        daemon adopts an unknown claim even from another daemon, so that the job is not lost.
        """
        if await self.pipeline.journal.read_job_state(job.job_id) is not None:
            return False
        is_late = self.clock.unix_time() - job.claimed_at > job.sla_secs / 2
        return job.claimed_at > self._started_at + _MAX_CLOCK_DIFFERENCE_S and not is_late

    async def _adopt(self, job: Job) -> None:
        """Take over a job that this wallet claimed and the journal lacks, for example after the loss of the journal."""
        names = {model_id: name for name, model_id in self.model_ids.items()}
        model = names.get(job.model_id, f"model {job.model_id}")
        log.warning("unknown claimed job adopted", job="0x" + job.job_id.hex())
        signed_job = await self.pipeline.journal.read_job(job.job_id) or job
        await self.pipeline.journal.record_adopted(signed_job, model)
        entry = JobEntry(signed_job, model, "claimed", float(job.claimed_at), None, None, None, None)
        await self._resume(entry, job)

    def _window_end(self, job: Job) -> float:
        """Return the loop time at which the window ends. An open job counts as claimed now."""
        if job.state == JobState.OPEN:
            return trio.current_time() + job.sla_secs
        return self.clock.to_loop_time(job.claimed_at + job.sla_secs)

    async def _resume(self, entry: JobEntry, job: Job | None) -> None:
        journal, job_id = self.pipeline.journal, entry.job.job_id
        verdict = decide_verdict(entry, job, self.provider_id, self.clock.unix_time())
        if verdict == "wait":
            return
        log.info("held job reconciled", job="0x" + job_id.hex(), journal=entry.state, verdict=verdict)
        if verdict == "not_claimed":
            await journal.record_end(job_id, "not_claimed")
            return
        slot = self.slots.take_unchecked(entry.model, job_id)
        if slot is None:  # a stage already has the job
            return
        on_chain = job if job is not None else entry.job
        window_ends = self._window_end(on_chain)
        held = ClaimedJob(on_chain, entry.model, slot, window_ends, is_recovered=True)
        try:
            await self._send_to_stage(held, entry, verdict)
        except BaseException:
            slot.release()  # no stage has the job, so the next round resumes it
            raise

    async def _send_to_stage(self, held: ClaimedJob, entry: JobEntry, verdict: Verdict) -> None:
        on_chain, window_ends = held.job, held.window_ends_at
        match verdict:
            case "settled":
                await self.pipeline.record_settled(held, None)
            case "failed":
                await self.pipeline.record_failed(held, entry.reason or "internal_error")
            case "fail":
                differs = on_chain.order != entry.job.order
                detail = (
                    "the posted terms differ from the signed claim"
                    if differs
                    else "resuming the fail of an earlier run"
                )
                await self.pipeline.give_up(held, WorkFailed(entry.reason or "unservable", detail))
            case "claim_expired" if on_chain.state == JobState.CLAIMED:
                await self.pipeline.give_up(held, WorkFailed("claim_expired", "the window has ended"))
            case "claim_expired":
                await self.pipeline.record_given_up(held, "claim_expired")
            case "settle":
                sealed = SealedJob(
                    held, entry.completion_tok or 0, entry.result_length or 0, result_cid=entry.result_cid
                )
                large = needs_upload(sealed.result_length) and sealed.result_cid is None
                await (self.pipeline.to_upload if large else self.pipeline.to_settle).send(window_ends, sealed)
            case "work":
                if entry.state == "claiming":
                    await self.pipeline.journal.record_claimed(on_chain.job_id)
                    metrics.jobs_claimed.inc()
                await self.pipeline.to_open.send(window_ends, held)
