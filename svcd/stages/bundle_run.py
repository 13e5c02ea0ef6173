"""Run the items of a bundle on the model's slots.

Each finished item is written to the journal before another one takes its slot, so a restart repeats no finished item.
Items that are finished by the deadline are settled, and the others are `not_run`.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from common.bundle import STATUSES, ItemResult, bundle_output, bundle_units
from common.pricing.units import Units
from common.refusal import Refused
from svcd.backends.breaker import Breaker
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.journal.item_seal import ItemSeal
from svcd.journal.journal import Journal
from svcd.journal.work import BundleWork, ModelWork, WorkOutput
from svcd.payload.sealable import sealable
from svcd.stages.drain import Drain

log = structlog.get_logger(__name__)

MAX_RESULT_BYTES: Final = 8 * 2**20  # after this much output no further item starts, so that results stay inline
_DEADLINE_GRACE_S: Final = 1.0  # for backends to report that they did not finish
# Nesting depth at which a bundle's output contains the output of an item.
_ITEM_OUTPUT_DEPTH: Final = 3
_NOT_RUN: Final = frozenset({"deadline_wait", "sla_abandon"})


@attrs.define(slots=True, eq=False)
class BundleRun:
    """Run of one bundle. `run_item` waits for a turn and runs the item."""

    held: ClaimedJob
    work: BundleWork
    seal: ItemSeal
    workers: int
    run_item: Callable[[ModelWork], Awaitable[WorkOutput]]
    breaker: Breaker
    journal: Journal
    _finished: dict[int, ItemResult] = attrs.field(factory=dict)
    _waiting: deque[ModelWork] = attrs.field(factory=deque)
    _result_bytes: int = 0

    async def run(self, drain: Drain) -> WorkOutput:
        """Return the results of all items. Raise `WorkFailed` if none is completed."""
        await self._recall()
        stopped: WorkFailed | None = None
        try:
            with drain.work():
                await self._run_waiting()
        except WorkFailed as failure:  # the daemon stops: settle what is finished
            stopped = failure
        return self._output(stopped)

    async def _recall(self) -> None:
        """Take over the items that an earlier run of the daemon finished."""
        for number, sealed in (await self.journal.items(self.held.job.job_id)).items():
            result = self.seal.open(sealed)
            if result is not None and number < len(self.work.items):
                self._finished[number] = result
                self._result_bytes += len(sealed)
        self._waiting.extend(item for item in self.work.items if item.item not in self._finished)
        if self._finished:
            log.info("bundle resumed", job=self.held.name, finished=len(self._finished), waiting=len(self._waiting))

    async def _run_waiting(self) -> None:
        with trio.move_on_at(self.work.deadline + _DEADLINE_GRACE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(min(self.workers, len(self._waiting))):
                    nursery.start_soon(self._work)

    async def _work(self) -> None:
        while self._may_start():
            await self.breaker.wait_closed()
            if not self._may_start():
                return
            item = self._waiting.popleft()
            result = await self._result_of(item)
            if result is not None:
                await self._keep(item, result)

    def _may_start(self) -> bool:
        return bool(self._waiting) and self._result_bytes < MAX_RESULT_BYTES

    async def _result_of(self, item: ModelWork) -> ItemResult | None:
        """Return the result of an item, or None if its time was over."""
        custom_id = self._custom_id(item)
        try:
            output = await self.run_item(item)
            sealed_output, usage = (
                sealable(output.output, _ITEM_OUTPUT_DEPTH),
                sealable(output.usage, _ITEM_OUTPUT_DEPTH),
            )
        except WorkFailed as failure:
            if failure.reason in _NOT_RUN:
                return None
            log.warning("item failed", job=self.held.name, item=item.item, reason=failure.reason, detail=failure.detail)
            return ItemResult("failed", custom_id, error_code=failure.reason)
        except Refused:
            return ItemResult("failed", custom_id, error_code="backend_error")
        except Exception:
            log.exception("item failed unexpectedly", job=self.held.name, item=item.item)
            return ItemResult("failed", custom_id, error_code="internal_error")
        units_out = min(output.completion_tok, item.units_out)
        usage = usage if isinstance(usage, dict) else {}
        return ItemResult("completed", custom_id, sealed_output, usage, None, item.units_in, units_out)

    async def _keep(self, item: ModelWork, result: ItemResult) -> None:
        if item.item is None:
            raise AssertionError("an item of a bundle has a number")
        sealed = self.seal.seal(result)
        # Before the journal: if the deadline comes during the write, the result is still settled.
        self._finished[item.item] = result
        self._result_bytes += len(sealed)
        await self.journal.item_finished(self.held.job.job_id, item.item, sealed)

    def _custom_id(self, item: ModelWork) -> str | None:
        return None if item.item is None else self.work.custom_ids[item.item]

    def _output(self, stopped: WorkFailed | None) -> WorkOutput:
        results = [
            self._finished.get(number, ItemResult("not_run", custom_id))
            for number, custom_id in enumerate(self.work.custom_ids)
        ]
        counts: dict[str, object] = {status: sum(result.status == status for result in results) for status in STATUSES}
        log.info(
            "bundle run",
            job=self.held.name,
            completed=counts["completed"],
            failed=counts["failed"],
            not_run=counts["not_run"],
        )
        if not counts["completed"]:
            codes = [result.error_code for result in results if result.error_code is not None]
            raise stopped or WorkFailed(codes[0] if codes else "deadline_wait", "no item of the bundle was completed")
        job = self.held.job
        charged = [Units(result.units_in, result.units_out) for result in results]
        return WorkOutput(bundle_output(results), bundle_units(charged, job.rate_in, job.rate_out), counts)
