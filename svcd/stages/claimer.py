"""From an offered job to a held one: a signed claim, relayed, and its end found out."""

from typing import Final

import attrs
import structlog
import trio

from common.api.states import JobState
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.base.timings import Timings
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import Body, OpSigner
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpMined, OpOutcome, OpStored, describe
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import ClaimedJob
from svcd.stages.ahead import AheadLimits
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.health import DaemonHealth
from svcd.stages.offers import Offer
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_PATIENCE: Final = 90.0  # seconds for one claim: the coordinator itself waits a minute for the receipt
_LOOK_AGAIN: Final = 2.0
STALE: Final = ChainRefused("StaleOp")
# Refusals that say nothing about the job: it may be claimed later, or by somebody else.
_ABOUT_US: Final = frozenset({"AtCapacity", "ModelNotAllowed", "NotListed", "StaleOp", "UnknownProvider"})


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
    limits: AheadLimits

    async def serve(self) -> None:
        while True:
            offer = await self.offers.receive()
            try:
                await self._claim(offer)
            except Exception:  # whatever it was, the slot must not be lost with it; reconciliation finds the job
                log.exception("a claim met an unexpected failure", job=offer.job.job_id.hex())
                offer.slot.give_back()

    async def _claim(self, offer: Offer) -> None:
        job = offer.job
        if self.health.withholds(offer.model, job.sla_secs):  # since it was offered
            offer.slot.give_back()
            return
        if not await self.pipeline.journal.claiming(job, offer.model):
            # The book is behind the chain. A claim would take the place of the entry, and of its result.
            log.info("a job that was worked on before is offered again, and left", job=job.job_id.hex())
            self.pipeline.exclusions.for_a_while(job.job_id)
            offer.slot.give_back()
            return
        # The SLA counts from the claim's block, so counting from before the claim was sent is on the safe side, and
        # compares no clocks.
        sent = trio.current_time()
        op = self.signer.claim(job.job_id, job.order, self.clock.now())
        held = ClaimedJob(job, offer.model, offer.slot, sent + job.sla_secs)
        ahead = await self.limits.permit(offer)
        if ahead is not None:
            stored = await self.coordinator.store(op, sent + _PATIENCE)
            if isinstance(stored, OpStored):
                await self._run_ahead(attrs.evolve(held, ahead=ahead), offer, op, sent + _PATIENCE)
                return
            outcome: OpOutcome = stored
            ahead.over()
        else:
            outcome = await self.coordinator.run(op, sent + _PATIENCE)
        claimed = await self._is_claimed(held, outcome, sent + _PATIENCE)
        if claimed is None:
            # It may be mined yet. The journal keeps it as `claiming`, and reconciliation takes it up if it is.
            log.warning("claim without an answer", job=job.job_id.hex(), outcome=describe(outcome))
            offer.slot.give_back()
        elif not claimed:
            self._told(offer, outcome)
            await self.pipeline.journal.ended(job.job_id, "not_claimed", describe(outcome))
            offer.slot.give_back()
        else:
            if not offer.pending:  # its claim waited for its post, too
                self.timings.relayed(trio.current_time() - sent)
            await self._claimed(held)
            await self.pipeline.to_open.send(held.sla_ends, held)

    async def _claimed(self, held: ClaimedJob) -> None:
        await self.pipeline.journal.claimed(held.job.job_id)
        metrics.jobs_claimed.inc()
        log.info("job claimed", job=held.name, model=held.model, sla_secs=held.job.sla_secs)

    async def _run_ahead(self, held: ClaimedJob, offer: Offer, op: Body, until: float) -> None:
        """The stages have the job from now on; this finds out what became of its claim."""
        ahead = held.ahead
        if ahead is None:
            raise AssertionError("a job is run ahead with a permit")
        log.info("job run ahead of its claim", job=held.name, model=held.model, at_stake=ahead.at_stake)
        await self.pipeline.to_open.send(held.sla_ends, held)
        outcome = await self.coordinator.run(op, until)
        claimed = await self._is_claimed(held, outcome, until)
        if claimed is False:
            self._told(offer, outcome)
            ahead.refuse(describe(outcome))
            return
        if claimed is None:  # the job's end will tell: until then what is at stake stays at stake
            log.warning("claim without an answer", job=held.name, outcome=describe(outcome))
            return
        await self._claimed(held)
        ahead.confirm()

    async def _is_claimed(self, held: ClaimedJob, outcome: OpOutcome, until: float) -> bool | None:
        """None when it could not be found out."""
        match outcome:
            case OpMined(succeeded=succeeded):
                return succeeded
            case ChainRefused(reason="NotOpen"):
                pass  # perhaps by our own claim, whose first answer was lost
            case ChainRefused() | SignInRefused():
                return False
            case CoordinatorRefusal(status=status) if status < 500:
                return False
        while True:
            try:
                found = await self.coordinator.job(held.job.job_id)
            except Unavailable:
                found = None
            # A job that the chain does not call open, and the index does, is one that the index is behind with.
            if found is not None and found.state != JobState.OPEN:
                # One that is run ahead may have been ended by us meanwhile.
                ours = found.state == JobState.CLAIMED or held.ahead is not None
                # Of another order under the same id, our signature claims nothing.
                return ours and found.provider_id == self.provider_id and found.order == held.job.order
            if trio.current_time() + _LOOK_AGAIN >= until:
                return None
            await trio.sleep(_LOOK_AGAIN)

    def _told(self, offer: Offer, outcome: OpOutcome) -> None:
        """What a refused claim says of the job, or of us."""
        reason = describe(outcome)
        log.info("claim refused", job=offer.job.job_id.hex(), reason=reason)
        if outcome == STALE:
            self.clock.was_stale()
        match outcome:
            case ChainRefused() if offer.pending and reason == "UnknownJob":
                pass  # its post was refused; or the offer was another's by then, and the job comes with its block
            case ChainRefused() if reason not in _ABOUT_US:
                self.pipeline.exclusions.for_a_while(offer.job.job_id)
            case ChainRefused() | CoordinatorRefusal() | SignInRefused():
                self.pipeline.exclusions.pause(offer.model)
