"""Poll for jobs of one model, and pass wanted jobs to the claimers."""

import time
from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.refusal import Refused
from common.scalars import hex_of
from common.tracing import spans
from svc.wire.gateways import is_content_id
from svcd.backends.breaker import Breaker
from svcd.backends.discount import AskRates, Discount
from svcd.backends.load import Load
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.base.timings import Timings
from svcd.config import ModelConfig
from svcd.coordinator.client import Coordinator, PollResult
from svcd.journal.book_row import Job
from svcd.journal.slots import Slots
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.health import DaemonHealth
from svcd.stages.offer_check import OfferChecker
from svcd.stages.offers import Exclusions, Offer

log = structlog.get_logger(__name__)

_MAX_POLL_WAIT_S: Final = 20  # the coordinator may delay its answer this long
_SHORT_WAIT_LIFETIME_S: Final = 600.0  # the full wait is tried again this long after a proxy cut off a poll
_MIN_CUT_OFF_S: Final = 1.0  # only a poll that lasted longer may have been cut off by a proxy
_MIN_TIME_LEFT_S: Final = 5  # from the claim to the expiry of the order


@attrs.define(slots=True, eq=False)
class Poller:
    model: ModelConfig
    model_id: int
    provider_id: int
    has_box_key: bool  # needed to open designated jobs
    coordinator: Coordinator
    clock: Clock
    slots: Slots
    load: Load
    discount: Discount
    breaker: Breaker
    exclusions: Exclusions
    timings: Timings
    offers: DeadlineChannel[Offer]
    offer_checker: OfferChecker
    health: DaemonHealth

    # Number of unwanted jobs that the last poll leased to this provider. The coordinator counts these jobs against
    # `free`, so the next poll requests that many more.
    _unwanted_leases: int = 0
    _short_wait_s: int = _MAX_POLL_WAIT_S
    _short_wait_until: float = 0.0

    async def run(self) -> NoReturn:
        was_failing = False
        while True:
            poll_at_once = False

            # Log only changes between failed and successful polls.
            try:
                poll_at_once = await self.poll()
            except (Unavailable, Refused) as error:
                if not was_failing:
                    log.warning("poll failed", model=self.model.name, reason=str(error))
                was_failing = True
            else:
                if was_failing:
                    log.info("polling recovered", model=self.model.name)
                was_failing = False
            if not poll_at_once:
                await trio.sleep(self.model.poll_seconds)

    async def poll(self) -> bool:
        """Poll once. Return True if the next poll may follow at once.

        Poll again at once after a long poll without jobs, and after pending jobs, which often come in series.
        """
        if self.health.withholds(self.model.name):
            # Do not poll: a poll makes this provider a candidate, and clients designate orders to candidates.
            metrics.requested_slots.labels(self.model.name).set(0)
            self.health.record_poll_answer(self.model.name)
            self._unwanted_leases = 0
            return False
        free = self._free_slots(await self.load.read())
        lowest_rates = {sla: self.discount.lowest_rates(ask) for sla, ask in self.model.asks.items()}
        poll_rates = {
            "rate_in": min(rates.rate_in for rates in lowest_rates.values()),
            "rate_out": min(rates.rate_out for rates in lowest_rates.values()),
        }
        requested = free + self._unwanted_leases if free else 0
        metrics.requested_slots.labels(self.model.name).set(requested)
        began, polled_at = trio.current_time(), time.time()
        wait = self._poll_wait_s() if requested else 0
        result = await self._poll_coordinator(requested, poll_rates, wait)
        jobs = result.jobs
        self.health.record_poll_answer(self.model.name)
        if jobs or result.pending_offers:
            self.health.record_orders(self.model.name)
        waited = trio.current_time() - began
        if (jobs or result.pending_offers) and waited > self.model.poll_seconds:
            # Slots and load may have changed during a long wait.
            free = min(free, self._free_slots(await self.load.read()))
        wanted = [job for job in jobs if self._is_wanted(job, lowest_rates)]
        self._unwanted_leases = sum(not self.slots.holds(job.job_id) for job in jobs) - len(wanted)
        for job in wanted:
            free -= await self._offer_to_claimers(job, free, result.trace_contexts.get(job.job_id), polled_at)
        taken = 0
        for job in await self._select_valid_jobs(result, lowest_rates, requested):
            trace = result.trace_contexts.get(job.job_id)
            taken += await self._offer_to_claimers(job, free - taken, trace, polled_at, pending=True)
        return taken > 0 or (wait > 0 and not jobs and not result.pending_offers and waited >= wait / 2)

    async def _select_valid_jobs(
        self, result: PollResult, lowest_rates: dict[int, AskRates], requested: int
    ) -> list[Job]:
        """Return the wanted pending jobs that have valid signatures.

        Ignore offers beyond the requested number, because checking thousands of signatures would block other jobs.
        """
        found = []
        for offer in result.pending_offers[:requested]:
            job = offer.to_job(result.indexed_block)
            if offer.designated in (0, self.provider_id) and self._is_wanted(job, lowest_rates):
                fault = await self.offer_checker.find_fault(offer)
                if fault is None:
                    found.append(job)
                else:
                    log.warning("pending offer skipped", job=job.job_id.hex(), reason=fault)
            metrics.pending_offers.labels("taken" if found and found[-1] is job else "left").inc()
        return found

    async def _offer_to_claimers(
        self, job: Job, free: int, order_trace: str | None, polled_at: float, *, pending: bool = False
    ) -> int:
        """Pass the job to the claimers if a slot is free. Return the number of slots taken, 0 or 1."""
        slot = self.slots.take(self.model.name, job.job_id) if free > 0 else None
        if slot is None:
            return 0
        trace = spans.record_span(
            "poll",
            parent=order_trace,
            started=polled_at,
            ended=time.time(),
            job=hex_of(job.job_id),
            model=self.model.name,
            pending=pending,
        )
        await self._send_offer(Offer(job, self.model.name, slot, pending, trace))
        return 1

    def _poll_wait_s(self) -> int:
        """Return the seconds that the coordinator may wait before it answers a poll."""
        return self._short_wait_s if trio.current_time() < self._short_wait_until else _MAX_POLL_WAIT_S

    async def _poll_coordinator(self, requested: int, poll_rates: dict[str, int], wait: int) -> PollResult:
        """Poll, and shorten the wait of later polls if a proxy cuts off this poll."""
        began = trio.current_time()
        try:
            return await self.coordinator.poll(self.model_id, requested, poll_rates, wait)
        except Unavailable:
            lasted = trio.current_time() - began
            if wait and lasted >= _MIN_CUT_OFF_S:
                self._short_wait_s, self._short_wait_until = min(wait, int(lasted)) // 2, began + _SHORT_WAIT_LIFETIME_S
            raise

    async def _send_offer(self, offer: Offer) -> None:
        try:
            await self.offers.send(offer.job.expires_at, offer)
        except BaseException:  # including Cancelled, when the daemon stops while all claimers are busy
            offer.slot.release()
            raise

    def _free_slots(self, load: float) -> int:
        """Return the free slots, reduced by the backend's load, or 0 while the circuit is open."""
        self.discount.observe(load, trio.current_time())
        if self.breaker.is_open or self.exclusions.is_model_paused(self.model.name):
            return 0
        return min(self.slots.free(self.model.name), int((1 - load) * self.model.slots + 1e-9))

    def _is_wanted(self, job: Job, lowest_rates: dict[int, AskRates]) -> bool:
        lowest = lowest_rates.get(job.sla_secs)
        return (
            lowest is not None
            and not self.health.withholds(self.model.name, job.sla_secs)
            and job.rate_in >= lowest.rate_in
            and job.rate_out >= lowest.rate_out
            and job.expires_at > self.clock.unix_time() + _MIN_TIME_LEFT_S
            and job.sla_secs > self.timings.shortest_window(self.model.name, self.model.margin_seconds)
            and (not self.exclusions.open_bids_paused if job.designated == 0 else self.has_box_key)
            and is_content_id(job.task_cid)
            and job.job_id not in self.exclusions
            and not self.slots.holds(job.job_id)
        )
