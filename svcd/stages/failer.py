"""Fail a job with a signed `fail`, which refunds the owner at once. A reclaim is possible only after the SLA."""

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
    describe,
)
from svcd.journal.held_job import Failing
from svcd.stages.claimer import STALE
from svcd.stages.op_lookup import Lookup
from svcd.stages.pipeline import Pipeline

log = structlog.get_logger(__name__)

_MIN_TIME_S: Final = 60.0  # retry even after the SLA: until a reclaim, a fail costs less reputation
_MAX_WAIT_S: Final = 30.0


class _NotConfirmed(Exception):
    """Raised while the chain has not confirmed the fail."""


@attrs.frozen(slots=True, eq=False)
class Failer:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    lookup: Lookup
    pipeline: Pipeline

    async def step(self, failing: Failing) -> None:
        until = max(failing.held.sla_ends, trio.current_time() + _MIN_TIME_S)
        try:
            attempt = partial(self._attempt, failing, until)
            await retry(attempt, on=_NotConfirmed, max_s=_MAX_WAIT_S, until=lambda: until)
        except _NotConfirmed:
            await self.pipeline.left(failing.held, failing.reason)

    async def _attempt(self, failing: Failing, until: float) -> None:
        """Raise _NotConfirmed when another attempt may succeed."""
        held, reason = failing.held, failing.reason
        op = self.signer.fail(held.job.job_id, self.clock.now())
        outcome = await self.coordinator.run(op, min(until, trio.current_time() + _MIN_TIME_S))
        if isinstance(outcome, OpMined) and outcome.succeeded:
            return await self.pipeline.failed(held, reason)
        log.warning("fail not confirmed", job=held.name, reason=reason, outcome=describe(outcome))
        if outcome == STALE:
            self.clock.was_stale()
        match (await self.lookup.after(outcome, held)).standing:
            case "settled":  # an earlier settle was mined, but its answer was lost
                return await self.pipeline.settled(held, None)
            case "ended":
                return await self.pipeline.failed(held, reason)
            case "held" if isinstance(outcome, ChainRefused) and outcome.reason != "StaleOp":
                return await self.pipeline.left(held, reason)  # only a stale signature is worth another attempt
        raise _NotConfirmed
