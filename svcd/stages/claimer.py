"""Claim offered jobs: sign the claim, send it, and determine whether the chain accepted it."""

from typing import Final

import attrs
import structlog
import trio

from common.api.states import JobState
from common.scalars import hex_of
from common.tracing import spans
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.base.timings import Timings
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import OpSigner, RequestBody
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpMined, OpOutcome, OpStored, describe_outcome
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import ClaimedJob
from svcd.stages.ahead import AheadLimits
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.health import DaemonHealth
from svcd.stages.offers import Offer
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_CLAIM_TIMEOUT_S: Final = 90.0  # the coordinator waits up to a minute for the receipt
_LOOKUP_INTERVAL_S: Final = 2.0
STALE_OP: Final = ChainRefused("StaleOp")

# Refusals because of the provider or its clock. The job can still be claimed, later or by another provider.
_PROVIDER_REFUSALS: Final = frozenset({"AtCapacity", "ModelNotAllowed", "NotListed", "StaleOp", "UnknownProvider"})


@attrs.frozen(slots=True, eq=False)
class Claimer:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    provider_id: int
    pipeline: Pipeline
    offers: DeadlineChannel[Offer]
    timings: Timings
    health: DaemonHealth
    ahead_limits: AheadLimits

    async def serve(self) -> None:
        while True:
            offer = await self.offers.receive()
            try:
                with spans.span("claim", parent=offer.trace_context, job=hex_of(offer.job.job_id)):
                    await self._claim(offer)
            except Exception:  # return the slot; the reconciler finds the job if it was claimed
                log.exception("claim failed unexpectedly", job=offer.job.job_id.hex())
                offer.slot.release()

    async def _claim(self, offer: Offer) -> None:
        job = offer.job
        if self.health.withholds(offer.model, job.sla_secs):
            offer.slot.release()
            return
        if not await self.pipeline.journal.record_claiming(job, offer.model):
            # The coordinator's index is behind the chain, so it offers a job that svcd already worked on. A new claim
            # would overwrite the journal's entry and result.
            log.info("claim skipped", job=job.job_id.hex(), reason="the journal already has an entry for this job")
            self.pipeline.exclusions.exclude_briefly(job.job_id)
            offer.slot.release()
            return

        # The window starts at the claim's block. svcd counts from the sending of the claim, which is earlier and needs
        # no other clock.
        sent = trio.current_time()
        op = self.signer.sign_claim(job.job_id, job.order, self.clock.now())
        held = ClaimedJob(job, offer.model, offer.slot, sent + job.sla_secs, trace_context=offer.trace_context)
        pending_claim = await self.ahead_limits.permit(offer)
        if pending_claim is not None:
            stored = await self.coordinator.store_op(op, sent + _CLAIM_TIMEOUT_S)
            if isinstance(stored, OpStored):
                await self._run_ahead(
                    attrs.evolve(held, pending_claim=pending_claim), offer, op, sent + _CLAIM_TIMEOUT_S
                )
                return
            outcome: OpOutcome = stored
            pending_claim.release_stake()
        else:
            outcome = await self.coordinator.send_op(op, sent + _CLAIM_TIMEOUT_S)
        claimed = await self._is_claimed(held, outcome, sent + _CLAIM_TIMEOUT_S)
        if claimed is None:
            # The claim may still be mined. The journal keeps the job as `claiming` for the reconciler.
            log.warning("claim outcome unknown", job=job.job_id.hex(), outcome=describe_outcome(outcome))
            offer.slot.release()
        elif not claimed:
            self._handle_refusal(offer, outcome)
            await self.pipeline.journal.record_end(job.job_id, "not_claimed", describe_outcome(outcome))
            offer.slot.release()
        else:
            if not offer.is_pending:  # a pending offer's claim also waits for the post, which would distort the timing
                self.timings.record_relay(trio.current_time() - sent)
            await self._record_claimed(held)
            await self.pipeline.to_open.send(held.window_ends_at, held)

    async def _record_claimed(self, held: ClaimedJob) -> None:
        await self.pipeline.journal.record_claimed(held.job.job_id)
        metrics.jobs_claimed.inc()
        log.info("job claimed", job=held.hex_id, model=held.model, sla_secs=held.job.sla_secs)

    async def _run_ahead(self, held: ClaimedJob, offer: Offer, op: RequestBody, until: float) -> None:
        """Pass the job to the opener. Then wait for the outcome of the claim, and confirm or cancel the work."""
        pending_claim = held.pending_claim
        if pending_claim is None:
            raise AssertionError("a job that runs ahead must have a permit")
        log.info(
            "job started ahead of claim", job=held.hex_id, model=held.model, at_stake=pending_claim.amount_at_stake
        )
        await self.pipeline.to_open.send(held.window_ends_at, held)
        outcome = await self.coordinator.send_op(op, until)
        claimed = await self._is_claimed(held, outcome, until)
        if claimed is False:
            self._handle_refusal(offer, outcome)
            pending_claim.refuse(describe_outcome(outcome))
            return
        if claimed is None:  # the amount at stake counts against the limits until the job ends
            log.warning("claim outcome unknown", job=held.hex_id, outcome=describe_outcome(outcome))
            return
        await self._record_claimed(held)
        pending_claim.confirm()

    async def _is_claimed(self, held: ClaimedJob, outcome: OpOutcome, until: float) -> bool | None:
        """Return True if this provider's claim is on the chain, or None if the outcome is still unknown at `until`."""
        match outcome:
            case OpMined(succeeded=succeeded):
                return succeeded
            case ChainRefused(reason="NotOpen"):
                pass  # an earlier claim of this daemon may have closed the job
            case ChainRefused() | SignInRefused():
                return False
            case CoordinatorRefusal(status=status) if status < 500:
                return False
        while True:
            try:
                found = await self.coordinator.read_job(held.job.job_id)
            except Unavailable:
                found = None
            # If the index still shows the job as open, the index is behind the chain.
            if found is not None and found.state != JobState.OPEN:
                # A job that runs ahead may already have been settled or failed by this daemon.
                is_ours = found.state == JobState.CLAIMED or held.pending_claim is not None
                # The claim covers only this order. The owner may have posted another order under the same job id.
                return is_ours and found.provider_id == self.provider_id and found.order == held.job.order
            if trio.current_time() + _LOOKUP_INTERVAL_S >= until:
                return None
            await trio.sleep(_LOOKUP_INTERVAL_S)

    def _handle_refusal(self, offer: Offer, outcome: OpOutcome) -> None:
        """Log a refused claim. Then exclude the job or the model from claims for a while."""
        reason = describe_outcome(outcome)
        log.info("claim refused", job=offer.job.job_id.hex(), reason=reason)
        if outcome == STALE_OP:
            self.clock.switch_time_source()
        match outcome:
            case ChainRefused() if offer.is_pending and reason == "UnknownJob":
                pass  # the post was refused, or is not mined yet and the job will be offered again
            case ChainRefused() if reason not in _PROVIDER_REFUSALS:
                self.pipeline.exclusions.exclude_briefly(offer.job.job_id)
            case ChainRefused() | CoordinatorRefusal() | SignInRefused():
                self.pipeline.exclusions.pause_model(offer.model)
