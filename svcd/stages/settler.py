"""Settle a job: send the sealed result, or the content id of the uploaded one, until the chain confirms it."""

from functools import partial
from typing import Final

import attrs
import httpx
import structlog
import trio

from common.daemon.retries import retry
from common.scalars import base64_of
from svcd.base.clock import Clock
from svcd.base.end_reasons import WorkFailed
from svcd.base.timings import Timings
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import Body, OpSigner
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    Unanswered,
    UploadOutcome,
    describe,
)
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import ClaimedJob, SealedJob
from svcd.stages.claimer import STALE
from svcd.stages.op_lookup import Lookup
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_MAX_WAIT_S: Final = 10.0
_RESIGN_AFTER_S: Final = 500.0  # a signature is valid for 600 s; until then the same op is the same transaction
# After a reorg the coordinator rebroadcasts the claim, which is mined again within a few blocks. If the chain refuses
# that claim (for example because the token is paused), the job stays open and must be claimed again.
_RECLAIM_AFTER_S: Final = 20.0
_CLAIM_TIMEOUT_S: Final = 90.0
_SERVER_ERROR: Final = 500


@attrs.define(slots=True, eq=False)
class _Settling:
    """State of one settle between attempts. No attempt starts after `ends`; `outcome` is of the last attempt."""

    sealed: SealedJob
    op: Body
    signed_at: float
    ends: float
    outcome: OpOutcome | None = None
    is_open: bool = False  # a reorg removed the claim
    open_since: float | None = None


@attrs.frozen(slots=True)
class _NotSettled(Exception):
    """Raised when another attempt may succeed."""

    outcome: OpOutcome


@attrs.frozen(slots=True, eq=False)
class Settler:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    lookup: Lookup
    timings: Timings
    pipeline: Pipeline

    async def step(self, sealed: SealedJob) -> None:
        settling = _Settling(sealed, await self._sign(sealed), trio.current_time(), sealed.held.sla_ends)
        try:
            await retry(
                partial(self._attempt, settling), on=_NotSettled, max_s=_MAX_WAIT_S, until=lambda: settling.ends
            )
        except _NotSettled as last:
            raise _failure(last.outcome) or WorkFailed("settle_http_504", describe(last.outcome)) from None

    async def _attempt(self, settling: "_Settling") -> None:
        """Send the settle once. Raise _NotSettled when another attempt may succeed."""
        if settling.outcome is not None:
            await self._renew(settling, settling.outcome)
        held, started = settling.sealed.held, trio.current_time()
        outcome = settling.outcome = await self.coordinator.run(settling.op, held.sla_ends, resend=False)
        match outcome:
            case OpMined(succeeded=True):
                if held.ahead is None:  # otherwise the time includes the wait for the claim
                    self.timings.relayed(trio.current_time() - started)
                return await self.pipeline.settled(held, settling.sealed.started)
            case CoordinatorRefusal(code="unknown_result") if settling.sealed.result_cid is not None:
                # The upload expired: it is kept a few minutes unless a settle names it.
                lapsed = attrs.evolve(settling.sealed, result_cid=None)
                return await self.pipeline.to_upload.send(held.sla_ends, lapsed)
        log.warning("settle not confirmed", job=held.name, outcome=describe(outcome))
        # A final outcome needs the index to catch up first. One that may recover does not.
        found = await (self.lookup.of(held) if _may_recover(held, outcome) else self.lookup.after(outcome, held))
        held = found.held
        if found.standing == "settled":
            return await self.pipeline.settled(held, settling.sealed.started)
        settling.sealed = attrs.evolve(settling.sealed, held=held)
        settling.is_open = found.standing == "open" and held.was_claimed
        settling.ends = self.clock.in_loop_time(held.job.expires_at) if settling.is_open else held.sla_ends
        failure = _failure(outcome)
        if failure is not None and is_final(outcome) and (found.standing == "ended" or not _may_recover(held, outcome)):
            raise failure
        raise _NotSettled(outcome)

    async def _renew(self, settling: "_Settling", outcome: OpOutcome) -> None:
        """Claim the job again if a reorg removed its claim for good, and re-sign an old or reverted settle."""
        now = trio.current_time()
        if not settling.is_open:
            settling.open_since = None
        elif settling.open_since is None:
            settling.open_since = now
        elif now - settling.open_since >= _RECLAIM_AFTER_S:
            settling.open_since = None
            await self._claim_again(settling.sealed.held)
        if outcome == STALE:
            self.clock.was_stale()
        # Resending a reverted settle returns the same revert.
        reverted = outcome == STALE or isinstance(outcome, OpMined)
        if reverted or trio.current_time() - settling.signed_at > _RESIGN_AFTER_S:
            settling.op, settling.signed_at = await self._sign(settling.sealed), trio.current_time()

    async def _claim_again(self, held: ClaimedJob) -> None:
        """Claim the job again. The next settle shows whether it worked, and the journal keeps the result."""
        op = self.signer.claim(held.job.job_id, held.job.order, self.clock.now())
        outcome = await self.coordinator.run(op, trio.current_time() + _CLAIM_TIMEOUT_S)
        if outcome == STALE:
            self.clock.was_stale()
        log.info("job claimed again", job=held.name, outcome=describe(outcome))

    async def _sign(self, sealed: SealedJob) -> Body:
        op = self.signer.settle(sealed.held.job.job_id, sealed.completion_tok, self.clock.now())
        if sealed.result_cid is not None:
            return op | {"result_cid": sealed.result_cid}
        result = sealed.result
        if result is None:
            content = await self.pipeline.journal.open_result(sealed.held.job.job_id)
            if not isinstance(content, bytes):
                with content:
                    content = await trio.to_thread.run_sync(content.read)
            result = content
        return op | {"result": base64_of(result)}


def _failure(outcome: OpOutcome) -> WorkFailed | None:
    """Return None for a settle that may still be mined."""
    match outcome:
        case OpMined():
            return WorkFailed("settle_reverted", f"mined and reverted in {outcome.tx_hash}")
        case ChainRefused():
            return WorkFailed(f"settle_{outcome.reason}")
        case OpPending():
            return None
        case _:
            return upload_failure(outcome)


def upload_failure(outcome: CoordinatorRefusal | SignInRefused | Unanswered) -> WorkFailed:
    """Return the failure, with the specification's reason, for a result that the coordinator did not accept."""
    match outcome:
        case CoordinatorRefusal(status=httpx.codes.FORBIDDEN):
            return WorkFailed("settle_rejected", outcome.code or "")
        case CoordinatorRefusal(status=httpx.codes.REQUEST_ENTITY_TOO_LARGE):
            return WorkFailed("settle_result_too_large", outcome.code or "")
        case CoordinatorRefusal():
            return WorkFailed(f"settle_http_{outcome.status}", outcome.code or "")
        case SignInRefused(status=None):
            return WorkFailed("settle_transport_error", f"no session: {outcome.detail}")
        case SignInRefused():
            return WorkFailed(f"session_http_{outcome.status}", outcome.detail)
        case _:
            return WorkFailed("settle_transport_error", outcome.detail)


def _may_recover(held: ClaimedJob, outcome: OpOutcome) -> bool:
    """Return True for an outcome that may not be final.

    A wrong clock is corrected. After a reorg the coordinator rebroadcasts the post and the claim; a job given up before
    that would be claimed again but never worked on. A reverted settle passed simulation when it was sent, so the next
    attempt is refused with the reason, if the reason persists.
    """
    match outcome:
        case OpMined():
            return True
        case ChainRefused() if outcome == STALE:
            return True
        case ChainRefused(reason="NotClaimed" | "UnknownJob"):
            return trio.current_time() < held.claim_dies
        case _:
            return False


def is_final(outcome: OpOutcome | UploadOutcome) -> bool:
    """Return True if another attempt would fail the same way. The client has already made the usual retries."""
    match outcome:
        case OpMined() | ChainRefused():
            return True
        case CoordinatorRefusal(status=httpx.codes.UNAUTHORIZED):
            return False  # the coordinator lost the session twice during one request
        case CoordinatorRefusal(status=int(status)) | SignInRefused(status=int(status)):
            return status <= _SERVER_ERROR
        case _:
            return False
