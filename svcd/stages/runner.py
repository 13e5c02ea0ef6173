"""Run work on its backend, within the time that the SLA leaves."""

from typing import Final

import attrs
import trio

from common.box import SecretKey
from svcd.backends.backend import Backend
from svcd.backends.breaker import Breaker
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.base.timings import Timings
from svcd.journal.held_job import ClaimedJob, Finished, Opened
from svcd.journal.item_seal import ItemSeal
from svcd.journal.work import BundleWork, ModelWork, WorkOutput
from svcd.stages.bundle_run import BundleRun
from svcd.stages.drain import Drain
from svcd.stages.pipeline import Pipeline
from svcd.stages.turns import Turns

# Past the deadline, so that the backend can report why it did not finish.
GRACE_S: Final = 0.5


@attrs.frozen(slots=True, eq=False)
class Runner:
    """Runner of one model."""

    model: str
    backend: Backend
    breaker: Breaker
    timings: Timings
    pipeline: Pipeline
    drain: Drain
    turns: Turns
    box: SecretKey | None = None

    async def step(self, opened: Opened) -> None:
        started = trio.current_time()
        if started >= opened.work.deadline:
            raise WorkFailed("deadline_wait", "no time is left to run the job")
        output = await self._output(opened)
        await self.pipeline.to_seal.send(
            opened.held.sla_ends, Finished(opened.held, output, opened.result_key, started)
        )

    async def _output(self, opened: Opened) -> WorkOutput:
        work = opened.work
        with opened.held.work():
            if isinstance(work, BundleWork):
                return await self._bundle_run(opened.held, work).run(self.drain)
            with self.drain.work():
                return await self.run(work)

    def _bundle_run(self, held: ClaimedJob, work: BundleWork) -> BundleRun:
        if self.box is None:
            raise AssertionError("only designated bundles are opened, and these need the box key")
        return BundleRun(
            held=held,
            work=work,
            seal=ItemSeal.of(self.box, held.job.job_id),
            workers=self.turns.count,
            run_item=self.run,
            breaker=self.breaker,
            journal=self.pipeline.journal,
        )

    async def run(self, work: ModelWork) -> WorkOutput:
        """Run a job or an item when its turn comes. Report the outcome to the breaker and the timings."""
        try:
            output = await self._in_turn(work)
        except WorkFailed as failure:
            self.breaker.failed(failure.backend_fault)
            raise
        except Exception:
            self.breaker.failed(backend_fault=True)
            raise
        self.breaker.succeeded()
        return output

    async def _in_turn(self, work: ModelWork) -> WorkOutput:
        called, output, started = False, None, trio.current_time()
        with trio.move_on_at(work.deadline) as until:
            async with self.turns.turn(work.deadline):
                called, started, until.deadline = True, trio.current_time(), work.deadline + GRACE_S
                with metrics.backend_latency.labels(self.model).time():
                    output = await self.backend.run(work)
        if not called:
            raise WorkFailed("deadline_wait", "no turn on the backend before the deadline")
        if output is None or trio.current_time() > work.deadline:
            raise WorkFailed("sla_abandon", "the backend did not finish before the deadline", backend_fault=True)
        self.timings.ran(self.model, trio.current_time() - started)
        return output
