"""Run the items of a bundle on the model's slots.

Each finished item is written to the journal before another item takes its slot, so a restart repeats no finished item.
The settle charges the items that are finished by the deadline. All other items are `not_run`.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from common.bundle import ITEM_STATUSES, ItemResult, bundle_output, bundle_units
from common.pricing.units import Units
from common.refusal import Refused
from svcd.backends.breaker import Breaker
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.journal.item_seal import ItemSeal
from svcd.journal.journal import Journal
from svcd.journal.work import BundleWork, ModelWork, WorkOutput
from svcd.payload.sealable import to_sealable
from svcd.stages.drain import Drain

log = structlog.get_logger(__name__)

MAX_RESULT_BYTES: Final = 8 * 2**20  # after this much output no item starts, so that the result needs no upload
_DEADLINE_GRACE_S: Final = 1.0  # time for backends to report that the deadline ended an item
# Nesting depth at which a bundle's output contains the output of an item.
_ITEM_OUTPUT_DEPTH: Final = 3
_NOT_RUN_REASONS: Final = frozenset({"deadline_wait", "sla_abandon"})


@attrs.define(slots=True, eq=False)
class BundleRun:
    """Run of one bundle. `run_item` waits for a turn and runs the item."""

    claimed_job: ClaimedJob
    work: BundleWork
    item_seal: ItemSeal
    workers: int
    run_item: Callable[[ModelWork], Awaitable[WorkOutput]]
    breaker: Breaker
    journal: Journal
    _finished: dict[int, ItemResult] = attrs.field(factory=dict)
    _waiting: deque[ModelWork] = attrs.field(factory=deque)
    _result_bytes: int = 0

    async def run(self, drain: Drain) -> WorkOutput:
        """Run the items, and return all results. Raise `WorkFailed` if no item is completed."""
        await self._load_finished()
        shutdown_failure: WorkFailed | None = None
        try:
            with drain.cancellable():
                await self._run_waiting()
        except WorkFailed as failure:  # the daemon stops, so settle the finished items
            shutdown_failure = failure
        return self._build_output(shutdown_failure)

    async def _load_finished(self) -> None:
        """Load the items that the daemon finished before a restart."""
        for number, sealed in (await self.journal.read_items(self.claimed_job.job.job_id)).items():
            result = self.item_seal.open(sealed)
            if result is not None and number < len(self.work.items):
                self._finished[number] = result
                self._result_bytes += len(sealed)
        self._waiting.extend(item for item in self.work.items if item.item_number not in self._finished)
        if self._finished:
            log.info(
                "bundle resumed", job=self.claimed_job.hex_id, finished=len(self._finished), waiting=len(self._waiting)
            )

    async def _run_waiting(self) -> None:
        with trio.move_on_at(self.work.deadline + _DEADLINE_GRACE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(min(self.workers, len(self._waiting))):
                    nursery.start_soon(self._run_worker)

    async def _run_worker(self) -> None:
        while self._may_start_item():
            await self.breaker.wait_closed()
            if not self._may_start_item():
                return
            item = self._waiting.popleft()
            result = await self._run_item(item)
            if result is not None:
                await self._store_result(item, result)

    def _may_start_item(self) -> bool:
        has_time = trio.current_time() < self.work.deadline
        return has_time and bool(self._waiting) and self._result_bytes < MAX_RESULT_BYTES

    async def _run_item(self, item: ModelWork) -> ItemResult | None:
        """Run an item and return its result, or None if the item was not finished by the deadline."""
        custom_id = self._custom_id(item)
        try:
            output = await self.run_item(item)
            sealed_output, usage = (
                to_sealable(output.output, _ITEM_OUTPUT_DEPTH),
                to_sealable(output.usage, _ITEM_OUTPUT_DEPTH),
            )
        except WorkFailed as failure:
            if failure.reason in _NOT_RUN_REASONS:
                return None
            log.warning(
                "item failed",
                job=self.claimed_job.hex_id,
                item=item.item_number,
                reason=failure.reason,
                detail=failure.detail,
            )
            return ItemResult("failed", custom_id, error_code=failure.reason)
        except Refused:
            return ItemResult("failed", custom_id, error_code="backend_error")
        except Exception:
            log.exception("item failed unexpectedly", job=self.claimed_job.hex_id, item=item.item_number)
            return ItemResult("failed", custom_id, error_code="internal_error")
        units_out = min(output.completion_tok, item.units_out)
        usage = usage if isinstance(usage, dict) else {}
        return ItemResult("completed", custom_id, sealed_output, usage, None, item.units_in, units_out)

    async def _store_result(self, item: ModelWork, result: ItemResult) -> None:
        if item.item_number is None:
            raise AssertionError("the item of a bundle has no number")
        sealed = self.item_seal.seal(result)

        # Store the result in memory first, so that it is settled even if the deadline interrupts the write.
        self._finished[item.item_number] = result
        self._result_bytes += len(sealed)
        await self.journal.record_finished_item(self.claimed_job.job.job_id, item.item_number, sealed)

    def _custom_id(self, item: ModelWork) -> str | None:
        return None if item.item_number is None else self.work.custom_ids[item.item_number]

    def _build_output(self, shutdown_failure: WorkFailed | None) -> WorkOutput:
        results = [
            self._finished.get(number, ItemResult("not_run", custom_id))
            for number, custom_id in enumerate(self.work.custom_ids)
        ]
        counts: dict[str, object] = {
            status: sum(result.status == status for result in results) for status in ITEM_STATUSES
        }
        log.info(
            "bundle run",
            job=self.claimed_job.hex_id,
            completed=counts["completed"],
            failed=counts["failed"],
            not_run=counts["not_run"],
        )
        if not counts["completed"]:
            codes = [result.error_code for result in results if result.error_code is not None]
            raise shutdown_failure or WorkFailed(
                codes[0] if codes else "deadline_wait", "no item of the bundle was completed"
            )
        job = self.claimed_job.job
        charged = [Units(result.units_in, result.units_out) for result in results]
        return WorkOutput(bundle_output(results), bundle_units(charged, job.rate_in, job.rate_out), counts)
