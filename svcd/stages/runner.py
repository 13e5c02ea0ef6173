"""Run work on its backend before the deadline."""

from typing import Final

import attrs
import trio

from common.box import SecretKey
from svcd.backends.backend import Backend, OnDelta
from svcd.backends.breaker import Breaker
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.base.timings import Timings
from svcd.journal.held_job import ClaimedJob, FinishedJob, OpenedJob
from svcd.journal.item_seal import ItemSeal
from svcd.journal.work import BundleWork, ModelWork, TabWork, WorkOutput
from svcd.stages.bundle_run import BundleRun
from svcd.stages.drain import Drain
from svcd.stages.pipeline import Pipeline
from svcd.stages.tab_run import TabRun
from svcd.stages.turns import Turns
from svcd.tabs.entries import TabEntries
from svcd.tabs.ledger import MAX_PARALLEL
from svcd.tabs.service import TabService

DEADLINE_GRACE_S: Final = 0.5  # after the deadline, so that the backend can report why it did not finish


@attrs.frozen(slots=True, eq=False)
class Runner:
    """Runs the jobs of one model on its backend, and passes the outputs to the sealer."""

    model: str
    backend: Backend
    breaker: Breaker
    timings: Timings
    pipeline: Pipeline
    drain: Drain
    turns: Turns
    box_secret: SecretKey | None = None
    tabs: TabService | None = None

    async def step(self, opened: OpenedJob) -> None:
        started = trio.current_time()

        # A bundle or a tab without time left can still be settled with the answers from before a restart.
        if started >= opened.work.deadline and isinstance(opened.work, ModelWork):
            raise WorkFailed("deadline_wait", "no time is left to run the job")
        output = await self._run_work(opened)
        await self.pipeline.to_seal.send(
            opened.claimed_job.window_ends_at, FinishedJob(opened.claimed_job, output, opened.result_key, started)
        )

    async def _run_work(self, opened: OpenedJob) -> WorkOutput:
        work = opened.work
        with opened.claimed_job.cancel_if_refused():
            if isinstance(work, BundleWork):
                return await self._build_bundle_run(opened.claimed_job, work).run(self.drain)
            if isinstance(work, TabWork):
                return await self._build_tab_run(opened.claimed_job, work).run(self.drain)
            with self.drain.cancellable():
                return await self.run(work)

    def _build_bundle_run(self, held: ClaimedJob, work: BundleWork) -> BundleRun:
        if self.box_secret is None:
            raise AssertionError("a bundle was opened without the box key")
        return BundleRun(
            claimed_job=held,
            work=work,
            item_seal=ItemSeal.for_job(self.box_secret, held.job.job_id),
            workers=self.turns.slots,
            run_item=self.run,
            breaker=self.breaker,
            journal=self.pipeline.journal,
        )

    def _build_tab_run(self, held: ClaimedJob, work: TabWork) -> TabRun:
        if self.box_secret is None or self.tabs is None:
            raise AssertionError("a tab was opened without the box key or the tab service")
        seal = ItemSeal.for_job(self.box_secret, held.job.job_id)
        return TabRun(
            held=held,
            work=work,
            parallel=min(MAX_PARALLEL, self.turns.slots),
            service=self.tabs,
            entries=TabEntries(self.pipeline.journal, seal, held.job.job_id),
            run_request=self._run_request,
            breaker=self.breaker,
        )

    async def _run_request(self, work: ModelWork, on_delta: OnDelta, turn_deadline: float) -> WorkOutput:
        with self.drain.cancellable():
            return await self.run(work, on_delta, turn_deadline)

    async def run(
        self, work: ModelWork, on_delta: OnDelta | None = None, turn_deadline: float | None = None
    ) -> WorkOutput:
        """Run a job, an item or a request when its turn comes. Report the outcome to the breaker and the timings.

        The waiter with the earliest `turn_deadline` gets the next turn. The default is the deadline of the work.
        """
        try:
            output = await self._run_in_turn(work, on_delta, work.deadline if turn_deadline is None else turn_deadline)
        except WorkFailed as failure:
            self.breaker.record_failure(failure.backend_fault)
            raise
        except Exception:
            self.breaker.record_failure(backend_fault=True)
            raise
        self.breaker.record_success()
        return output

    async def _run_in_turn(self, work: ModelWork, on_delta: OnDelta | None, turn_deadline: float) -> WorkOutput:
        got_turn, output, started = False, None, trio.current_time()
        with trio.move_on_at(work.deadline) as until:
            async with self.turns.turn(turn_deadline):
                got_turn, started, until.deadline = True, trio.current_time(), work.deadline + DEADLINE_GRACE_S
                with metrics.backend_latency.labels(self.model).time():
                    output = await self.backend.run(work, on_delta)
        if not got_turn:
            raise WorkFailed("deadline_wait", "the job got no turn on the backend before the deadline")
        if output is None or trio.current_time() > work.deadline:
            raise WorkFailed("sla_abandon", "the backend did not finish before the deadline", backend_fault=True)
        self.timings.record_run(self.model, trio.current_time() - started)
        return output
