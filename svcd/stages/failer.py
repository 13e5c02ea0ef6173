"""Fail a job: a signed `fail` refunds the owner at once, whereas a reclaim is possible only after the SLA."""

from typing import Final

import attrs
import structlog
import trio

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

_LEAST_PATIENCE: Final = 60.0  # also when the SLA is over: until the reclaim, a fail is still the lesser harm
_PAUSE: Final = 1.0  # doubled with each attempt, up to:
_LONGEST_FAIL_PAUSE: Final = 30.0


@attrs.frozen(slots=True, eq=False)
class Failer:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    lookup: Lookup
    pipeline: Pipeline

    async def step(self, failing: Failing) -> None:
        held, reason = failing.held, failing.reason
        pause = _PAUSE
        until = max(held.sla_ends, trio.current_time() + _LEAST_PATIENCE)
        while True:
            op = self.signer.fail(held.job.job_id, self.clock.now())
            outcome = await self.coordinator.run(op, min(until, trio.current_time() + _LEAST_PATIENCE))
            if isinstance(outcome, OpMined) and outcome.succeeded:
                return await self.pipeline.failed(held, reason)
            log.warning("fail not confirmed", job=held.name, reason=reason, outcome=describe(outcome))
            if outcome == STALE:
                self.clock.was_stale()
            match (await self.lookup.after(outcome, held)).standing:
                case "settled":  # a settle whose answer was lost came through after all
                    return await self.pipeline.settled(held, None)
                case "ended":
                    return await self.pipeline.failed(held, reason)
                case "held" if isinstance(outcome, ChainRefused) and outcome.reason != "StaleOp":
                    return await self.pipeline.left(held, reason)  # it would be refused again; a clock is set right
                case _ if trio.current_time() + pause >= until:
                    return await self.pipeline.left(held, reason)
            await trio.sleep(pause)
            pause = min(pause * 2, _LONGEST_FAIL_PAUSE)
