"""Fail a job with a signed `fail`, which refunds the owner at once instead of after the end of the window."""

from functools import partial
from typing import Final

import attrs
import structlog
import trio

from common.daemon.retries import retry
from svcd.base.clock import Clock
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import (
    ChainRefused,
    OpMined,
    describe_outcome,
)
from svcd.journal.held_job import FailingJob
from svcd.stages.claimer import STALE_OP
from svcd.stages.job_lookup import JobLookup
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_MIN_RETRY_TIME_S: Final = 60.0  # retry even after the window: a late fail costs less reputation than a reclaim
_MAX_RETRY_PAUSE_S: Final = 30.0


class _NotConfirmed(Exception):
    """The chain has not confirmed the fail, and a retry may succeed."""


@attrs.frozen(slots=True, eq=False)
class Failer:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    lookup: JobLookup
    pipeline: Pipeline

    async def step(self, failing: FailingJob) -> None:
        until = max(failing.claimed_job.window_ends_at, trio.current_time() + _MIN_RETRY_TIME_S)
        try:
            attempt = partial(self._attempt, failing, until)
            await retry(attempt, on=_NotConfirmed, max_wait_s=_MAX_RETRY_PAUSE_S, deadline=lambda: until)
        except _NotConfirmed:
            await self.pipeline.record_given_up(failing.claimed_job, failing.reason)

    async def _attempt(self, failing: FailingJob, until: float) -> None:
        """Send the fail once. Raise _NotConfirmed if a retry may succeed."""
        held, reason = failing.claimed_job, failing.reason
        op = self.signer.sign_fail(held.job.job_id, self.clock.now())
        outcome = await self.coordinator.send_op(op, min(until, trio.current_time() + _MIN_RETRY_TIME_S))
        if isinstance(outcome, OpMined) and outcome.succeeded:
            return await self.pipeline.record_failed(held, reason)
        log.warning("fail not confirmed", job=held.hex_id, reason=reason, outcome=describe_outcome(outcome))
        if outcome == STALE_OP:
            self.clock.switch_time_source()
        match (await self.lookup.look_up_after(outcome, held)).state:
            case "settled":  # an earlier settle was mined, but its response was lost
                return await self.pipeline.record_settled(held, None)
            case "ended":
                return await self.pipeline.record_failed(held, reason)
            case "held" if isinstance(outcome, ChainRefused) and outcome.reason != "StaleOp":
                # Except after `StaleOp`, the chain would reject a retry for the same reason.
                return await self.pipeline.record_given_up(held, reason)
        raise _NotConfirmed
