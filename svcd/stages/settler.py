"""Settle a job: send the sealed result, or the content id of its upload, until the chain confirms the settle."""

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
from svcd.coordinator.op_signer import OpSigner, RequestBody
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    Unanswered,
    UploadOutcome,
    describe_outcome,
)
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import ClaimedJob, SealedJob
from svcd.stages.claimer import STALE_OP
from svcd.stages.job_lookup import JobLookup
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_MAX_RETRY_PAUSE_S: Final = 10.0
# A signature is valid for 600 s. A second signature is safe, because a job settles only once.
_SIGN_AGAIN_AFTER_S: Final = 500.0
# After a reorg, the coordinator rebroadcasts the claim, which is mined again within a few blocks. If the chain rejects
# that claim (for example because the token is paused), the job stays open and must be claimed again.
_CLAIM_AGAIN_AFTER_S: Final = 20.0
_CLAIM_TIMEOUT_S: Final = 90.0
_MAX_FINAL_STATUS: Final = 500  # after a higher status, such as 503, a retry may succeed


@attrs.define(slots=True, eq=False)
class _SettleState:
    """State of one settle between attempts. No attempt starts after `retries_end_at`. `outcome` is the last outcome."""

    sealed_job: SealedJob
    signed_op: RequestBody
    signed_at: float
    retries_end_at: float
    outcome: OpOutcome | None = None
    was_reopened: bool = False  # a reorg removed the claim
    reopened_at: float | None = None


@attrs.frozen(slots=True)
class _NotSettled(Exception):
    """The settle is not confirmed, and a retry may succeed."""

    outcome: OpOutcome


@attrs.frozen(slots=True, eq=False)
class Settler:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    lookup: JobLookup
    timings: Timings
    pipeline: Pipeline

    async def step(self, sealed: SealedJob) -> None:
        state = _SettleState(sealed, await self._sign(sealed), trio.current_time(), sealed.claimed_job.window_ends_at)
        try:
            await retry(
                partial(self._attempt, state),
                on=_NotSettled,
                max_wait_s=_MAX_RETRY_PAUSE_S,
                deadline=lambda: state.retries_end_at,
            )
        except _NotSettled as last:
            raise _settle_failure(last.outcome) or WorkFailed(
                "settle_http_504", describe_outcome(last.outcome)
            ) from None

    async def _attempt(self, state: _SettleState) -> None:
        """Send the settle once. Raise _NotSettled if a retry may succeed."""
        if state.outcome is not None:
            await self._prepare_retry(state, state.outcome)
        held, started = state.sealed_job.claimed_job, trio.current_time()
        outcome = state.outcome = await self.coordinator.send_op(state.signed_op, held.window_ends_at, resend=False)
        match outcome:
            case OpMined(succeeded=True):
                if held.pending_claim is None:  # otherwise the time includes the wait for the claim
                    self.timings.record_relay(trio.current_time() - started)
                return await self.pipeline.record_settled(held, state.sealed_job.started_at)
            case CoordinatorRefusal(code="unknown_result") if state.sealed_job.result_cid is not None:
                # The upload expired, because no settle used it within a few minutes.
                expired = attrs.evolve(state.sealed_job, result_cid=None)
                return await self.pipeline.to_upload.send(held.window_ends_at, expired)
        log.warning("settle not confirmed", job=held.hex_id, outcome=describe_outcome(outcome))

        # If the outcome may be final, wait until the index has caught up before the job ends.
        found = await (
            self.lookup.look_up(held) if _may_still_settle(held, outcome) else self.lookup.look_up_after(outcome, held)
        )
        held = found.claimed_job
        if found.state == "settled":
            return await self.pipeline.record_settled(held, state.sealed_job.started_at)
        state.sealed_job = attrs.evolve(state.sealed_job, claimed_job=held)
        state.was_reopened = found.state == "open" and held.was_claimed
        state.retries_end_at = (
            self.clock.to_loop_time(held.job.expires_at) if state.was_reopened else held.window_ends_at
        )
        failure = _settle_failure(outcome)
        if (
            failure is not None
            and is_final(outcome)
            and (found.state == "ended" or not _may_still_settle(held, outcome))
        ):
            raise failure
        raise _NotSettled(outcome)

    async def _prepare_retry(self, state: _SettleState, outcome: OpOutcome) -> None:
        """Claim the job again if a reorg removed the claim and the claim is not mined again in time.

        Sign a new settle if the last settle reverted or its signature is about to expire.
        """
        now = trio.current_time()
        if not state.was_reopened:
            state.reopened_at = None
        elif state.reopened_at is None:
            state.reopened_at = now
        elif now - state.reopened_at >= _CLAIM_AGAIN_AFTER_S:
            state.reopened_at = None
            await self._claim_again(state.sealed_job.claimed_job)
        if outcome == STALE_OP:
            self.clock.switch_time_source()
        # Resending a reverted settle returns the same revert, so sign a new settle.
        reverted = outcome == STALE_OP or isinstance(outcome, OpMined)
        if reverted or trio.current_time() - state.signed_at > _SIGN_AGAIN_AFTER_S:
            state.signed_op, state.signed_at = await self._sign(state.sealed_job), trio.current_time()

    async def _claim_again(self, held: ClaimedJob) -> None:
        """Send a new claim, and only log its outcome. The next settle shows whether the claim succeeded."""
        op = self.signer.sign_claim(held.job.job_id, held.job.order, self.clock.now())
        outcome = await self.coordinator.send_op(op, trio.current_time() + _CLAIM_TIMEOUT_S)
        if outcome == STALE_OP:
            self.clock.switch_time_source()
        log.info("job claimed again", job=held.hex_id, outcome=describe_outcome(outcome))

    async def _sign(self, sealed: SealedJob) -> RequestBody:
        op = self.signer.sign_settle(sealed.claimed_job.job.job_id, sealed.completion_tok, self.clock.now())
        if sealed.result_cid is not None:
            return op | {"result_cid": sealed.result_cid}
        result = sealed.result
        if result is None:
            content = await self.pipeline.journal.open_result(sealed.claimed_job.job.job_id)
            if not isinstance(content, bytes):
                with content:
                    content = await trio.to_thread.run_sync(content.read)
            result = content
        return op | {"result": base64_of(result)}


def _settle_failure(outcome: OpOutcome) -> WorkFailed | None:
    """Convert the outcome of a settle to a failure of the job. Return None for a settle that may still be mined."""
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
    """Convert a failed request to a failure of the job. The reason is one of the specification's codes."""
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


def _may_still_settle(held: ClaimedJob, outcome: OpOutcome) -> bool:
    """Return True if the settle may still succeed after this refusal or revert.

    - A reverted settle had passed simulation. If the cause persists, the chain rejects the next attempt with a reason.
    - After `StaleOp`, svcd corrects its clock and signs again.
    - If a reorg removed the post or the claim, the coordinator rebroadcasts both. Keep trying until the claim expires,
      because otherwise the claim could be mined again without a settle.
    """
    match outcome:
        case OpMined():
            return True
        case ChainRefused() if outcome == STALE_OP:
            return True
        case ChainRefused(reason="NotClaimed" | "UnknownJob"):
            return trio.current_time() < held.claim_expires_at
        case _:
            return False


def is_final(outcome: OpOutcome | UploadOutcome) -> bool:
    """Return True if a retry would fail in the same way. `Transport` has already made the usual HTTP retries."""
    match outcome:
        case OpMined() | ChainRefused():
            return True
        case CoordinatorRefusal(status=httpx.codes.UNAUTHORIZED):
            return False  # the coordinator lost the session twice during one request
        case CoordinatorRefusal(status=int(status)) | SignInRefused(status=int(status)):
            return status <= _MAX_FINAL_STATUS
        case _:
            return False
