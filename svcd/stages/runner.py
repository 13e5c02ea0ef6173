"""Run work on its backend, within the time that the SLA leaves."""

from typing import Final

import attrs
import trio

from svcd.backends.backend import Backend
from svcd.backends.breaker import Breaker
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.base.timings import Timings
from svcd.journal.held_job import Finished, Opened
from svcd.journal.work import WorkOutput
from svcd.stages.drain import Drain
from svcd.stages.pipeline import Pipeline

# Past the deadline, so that the backend can report why it did not finish.
_GRACE_S: Final = 0.5


@attrs.frozen(slots=True, eq=False)
class Runner:
    """Runner of one model."""

    model: str
    backend: Backend
    breaker: Breaker
    timings: Timings
    pipeline: Pipeline
    drain: Drain

    async def step(self, opened: Opened) -> None:
        started = trio.current_time()
        if started >= opened.work.deadline:
            raise WorkFailed("deadline_wait", "no time is left to run the job")
        try:
            with self.drain.work(), opened.held.work(), metrics.backend_latency.labels(self.model).time():
                output = await self._run(opened)
        except WorkFailed as failure:
            self.breaker.failed(failure.backend_fault)
            raise
        except Exception:
            self.breaker.failed(backend_fault=True)
            raise
        self.breaker.succeeded()
        self.timings.ran(self.model, trio.current_time() - started)
        await self.pipeline.to_seal.send(
            opened.held.sla_ends, Finished(opened.held, output, opened.result_key, started)
        )

    async def _run(self, opened: Opened) -> WorkOutput:
        deadline = opened.work.deadline
        output = None
        with trio.move_on_at(deadline + _GRACE_S):
            output = await self.backend.run(opened.work)
        if output is None or trio.current_time() > deadline:
            raise WorkFailed("sla_abandon", "the backend did not finish before the deadline", backend_fault=True)
        return output
