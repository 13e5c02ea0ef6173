"""Settling: the result is handed over, as a file first where it is large, and the chain says that it was settled."""

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
_SIGNED_AGAIN_AFTER: Final = 500.0  # the window is 600 s; the same op sent again is the same transaction, so not before
# A claim that a reorganisation took is sent again by the coordinator, and is back within some blocks. One that the
# chain refuses then (a token that is paused, say) is not, and the job is open to whoever claims it, until it expires.
_CLAIMED_ANEW_AFTER: Final = 20.0
_CLAIM_PATIENCE: Final = 90.0
_SERVER_ERROR: Final = 500


@attrs.define(slots=True, eq=False)
class _Settling:
    """One job's settle between its attempts. `ends`: no attempt begins later. `outcome`: of the last attempt."""

    sealed: SealedJob
    op: Body
    signed_at: float
    ends: float
    outcome: OpOutcome | None = None
    is_open: bool = False  # a reorganisation took the claim off the chain
    open_since: float | None = None


@attrs.frozen(slots=True)
class _NotSettled(Exception):
    """Another attempt may succeed."""

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
        settling = _Settling(sealed, await self._op(sealed), trio.current_time(), sealed.held.sla_ends)
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
                if held.ahead is None:  # it waited for its claim, too
                    self.timings.relayed(trio.current_time() - started)
                return await self.pipeline.settled(held, settling.sealed.started)
            case CoordinatorRefusal(code="unknown_result") if settling.sealed.result_cid is not None:
                # The upload has lapsed: they live a few minutes until a settle names them.
                lapsed = attrs.evolve(settling.sealed, result_cid=None)
                return await self.pipeline.to_upload.send(held.sla_ends, lapsed)
        log.warning("settle not confirmed", job=held.name, outcome=describe(outcome))
        # Only before an end is believed has the index to confirm it.
        found = await (self.lookup.of(held) if _may_pass(held, outcome) else self.lookup.after(outcome, held))
        held = found.held
        if found.standing == "settled":
            return await self.pipeline.settled(held, settling.sealed.started)
        settling.sealed = attrs.evolve(settling.sealed, held=held)
        settling.is_open = found.standing == "open" and held.was_claimed
        settling.ends = self.clock.in_loop_time(held.job.expires_at) if settling.is_open else held.sla_ends
        failure = _failure(outcome)
        if failure is not None and is_final(outcome) and (found.standing == "ended" or not _may_pass(held, outcome)):
            raise failure
        raise _NotSettled(outcome)

    async def _renew(self, settling: "_Settling", outcome: OpOutcome) -> None:
        """Claim the job again where its claim did not come back, and sign the settle again where that is of use."""
        now = trio.current_time()
        if not settling.is_open:
            settling.open_since = None
        elif settling.open_since is None:
            settling.open_since = now
        elif now - settling.open_since >= _CLAIMED_ANEW_AFTER:
            settling.open_since = None
            await self._claim_anew(settling.sealed.held)
        if outcome == STALE:
            self.clock.was_stale()
        # Resending a reverted settle returns the same revert.
        reverted = outcome == STALE or isinstance(outcome, OpMined)
        if reverted or trio.current_time() - settling.signed_at > _SIGNED_AGAIN_AFTER:
            settling.op, settling.signed_at = await self._op(settling.sealed), trio.current_time()

    async def _claim_anew(self, held: ClaimedJob) -> None:
        """What it came to the next settle tells. The journal has the job's result, and goes on having it."""
        op = self.signer.claim(held.job.job_id, held.job.order, self.clock.now())
        outcome = await self.coordinator.run(op, trio.current_time() + _CLAIM_PATIENCE)
        if outcome == STALE:
            self.clock.was_stale()
        log.info("job claimed anew: its claim did not come back", job=held.name, outcome=describe(outcome))

    async def _op(self, sealed: SealedJob) -> Body:
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
    """None for a settle that may be mined yet."""
    match outcome:
        case OpMined():
            return WorkFailed("settle_reverted", f"mined and reverted in {outcome.tx_hash}")
        case ChainRefused():
            return WorkFailed(f"settle_{outcome.reason}")
        case OpPending():
            return None
        case _:
            return untaken(outcome)


def untaken(outcome: CoordinatorRefusal | SignInRefused | Unanswered) -> WorkFailed:
    """A result that the coordinator did not take, by the specification's name."""
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


def _may_pass(held: ClaimedJob, outcome: OpOutcome) -> bool:
    """Refusals that say nothing final. A wrong clock, ours or the coordinator's, is set right. And what a
    reorganisation took off the chain, the claim or the post as well, comes back: the coordinator sends their bytes
    again. Given up then, the job would be claimed by us again, and worked on by nobody until it is reclaimed. A settle
    that was mined in vain passed when it was sent: what changed meanwhile the next one is told by name."""
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
    """Whether another attempt would meet the same. What the coordinator calls retryable it was asked again already."""
    match outcome:
        case OpMined() | ChainRefused():
            return True
        case CoordinatorRefusal(status=httpx.codes.UNAUTHORIZED):
            return False  # the sessions were forgotten twice while it was on its way
        case CoordinatorRefusal(status=int(status)) | SignInRefused(status=int(status)):
            return status <= _SERVER_ERROR
        case _:
            return False
