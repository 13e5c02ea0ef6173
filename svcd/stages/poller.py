"""Asking for jobs of one model: how many, at which rates, and which of the leased ones to claim."""

from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.refusal import Refused
from svc.wire.gateways import is_content_id
from svcd.backends.breaker import Breaker
from svcd.backends.discount import AskRates, Discount
from svcd.backends.load import Load
from svcd.base import metrics
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.base.timings import Timings
from svcd.config import ModelConfig
from svcd.coordinator.client import Coordinator, Handed
from svcd.journal.book_row import Job
from svcd.journal.slots import Slot, Slots
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.health import DaemonHealth
from svcd.stages.offer_check import OfferCheck
from svcd.stages.offers import Exclusions, Offer

log = structlog.get_logger(__name__)

_LONGEST_WAIT: Final = 20  # seconds that a poll may be held while there is no job
_WAIT_AGAIN: Final = 600.0  # seconds after which a way that cut such a poll off is tried again for the whole time
_CUT: Final = 1.0  # seconds: a poll that failed sooner was not cut off for its length
_EXPIRES_SOON: Final = 5  # seconds: a claim of such an order would come too late


@attrs.define(slots=True, eq=False)
class Poller:
    model: ModelConfig
    model_id: int
    provider_id: int
    has_box_key: bool  # without it, what is designated to us could not be opened
    coordinator: Coordinator
    clock: Clock
    slots: Slots
    load: Load
    discount: Discount
    breaker: Breaker
    exclusions: Exclusions
    timings: Timings
    offers: DeadlineChannel[Offer]
    check: OfferCheck
    health: DaemonHealth
    # Leased to us at the last poll and of no use to us. The coordinator counts them as it counts what we claim: a few
    # orders for a window that is not sold here would otherwise be all that we are ever handed.
    _unwanted: int = 0
    _shorter: int = _LONGEST_WAIT  # seconds that a poll may take on the way to the coordinator
    _shorter_until: float = 0.0

    async def run(self) -> NoReturn:
        refused = False
        while True:
            held = False
            # Until it has had an answer, this stage says nothing twice: one line when it turns, either way.
            try:
                held = await self.poll()
            except (Unavailable, Refused) as error:
                if not refused:
                    log.warning("poll failed", model=self.model.name, reason=str(error))
                refused = True
            else:
                if refused:
                    log.info("polls answered again", model=self.model.name)
                refused = False
            if not held:
                await trio.sleep(self.model.poll_seconds)

    async def poll(self) -> bool:
        """True when the next one may follow at once: the coordinator held this one and there was nothing, or it gave
        jobs whose post is under way, of which the next may come in a moment, for whoever is there."""
        if self.health.withholds(self.model.name):
            # Who polls is a candidate, and is sent orders that nobody else may take.
            metrics.model_free.labels(self.model.name).set(0)
            self.health.heard(self.model.name)
            self._unwanted = 0
            return False
        free = self._free(await self.load.read())
        floors = {sla: self.discount.floor(ask) for sla, ask in self.model.asks.items()}
        lowest = {
            "rate_in": min(floor.rate_in for floor in floors.values()),
            "rate_out": min(floor.rate_out for floor in floors.values()),
        }
        asked = free + self._unwanted if free else 0
        metrics.model_free.labels(self.model.name).set(asked)
        began = trio.current_time()
        wait = self._wait() if asked else 0
        handed = await self._ask(asked, lowest, wait)
        jobs = handed.jobs
        self.health.heard(self.model.name)
        waited = trio.current_time() - began
        if (
            jobs or handed.pending
        ) and waited > self.model.poll_seconds:  # the slots of then may have been taken, the backend be busy
            free = min(free, self._free(await self.load.read()))
        wanted = [job for job in jobs if self._is_wanted(job, floors)]
        self._unwanted = sum(not self.slots.holds(job.job_id) for job in jobs) - len(wanted)
        for job in wanted:
            free -= await self._take_on(job, free)
        taken = 0
        for job in await self._checked(handed, floors):
            taken += await self._take_on(job, free - taken, pending=True)
        return taken > 0 or (wait > 0 and not jobs and not handed.pending and waited >= wait / 2)

    async def _checked(self, handed: Handed, floors: dict[int, AskRates]) -> list[Job]:
        """Jobs whose post is under way, as far as they are wanted, and what their owners signed is right."""
        found = []
        for offer in handed.pending:
            job = offer.job(handed.block)
            if offer.designated in (0, self.provider_id) and self._is_wanted(job, floors):
                fault = await self.check.fault(offer)
                if fault is None:
                    found.append(job)
                else:
                    log.warning("pending offer left", job=job.job_id.hex(), reason=fault)
            metrics.pending_offers.labels("taken" if found and found[-1] is job else "left").inc()
        return found

    async def _take_on(self, job: Job, free: int, *, pending: bool = False) -> int:
        """How many slots it takes: none where there are none."""
        slot = self.slots.take(self.model.name, job.job_id) if free > 0 else None
        if slot is None:
            return 0
        await self._offer(job, slot, pending=pending)
        return 1

    def _wait(self) -> int:
        """Seconds that a poll with room may be held."""
        return self._shorter if trio.current_time() < self._shorter_until else _LONGEST_WAIT

    async def _ask(self, asked: int, lowest: dict[str, int], wait: int) -> Handed:
        """A proxy on the way may cut off a poll that is held: then the next ones are shorter."""
        began = trio.current_time()
        try:
            return await self.coordinator.poll(self.model_id, asked, lowest, wait)
        except Unavailable:
            lasted = trio.current_time() - began
            if wait and lasted >= _CUT:
                self._shorter, self._shorter_until = min(wait, int(lasted)) // 2, began + _WAIT_AGAIN
            raise

    async def _offer(self, job: Job, slot: Slot, *, pending: bool) -> None:
        try:
            await self.offers.send(job.expires_at, Offer(job, self.model.name, slot, pending))
        except BaseException:  # among them Cancelled: the daemon stops while all claimers are busy
            slot.give_back()
            raise

    def _free(self, load: float) -> int:
        """Free slots, fewer the busier the backend is, whoever keeps it busy; none while the circuit is open."""
        self.discount.observe(load, trio.current_time())
        if self.breaker.is_open or self.exclusions.is_paused(self.model.name):
            return 0
        return min(self.slots.free(self.model.name), int((1 - load) * self.model.slots + 1e-9))

    def _is_wanted(self, job: Job, floors: dict[int, AskRates]) -> bool:
        floor = floors.get(job.sla_secs)
        return (
            floor is not None
            and not self.health.withholds(self.model.name, job.sla_secs)
            and job.rate_in >= floor.rate_in
            and job.rate_out >= floor.rate_out
            and job.expires_at > self.clock.wall() + _EXPIRES_SOON
            and job.sla_secs > self.timings.needed(self.model.name, self.model.margin_seconds)
            and (not self.exclusions.without_escrow if job.designated == 0 else self.has_box_key)
            and is_content_id(job.task_cid)
            and job.job_id not in self.exclusions
            and not self.slots.holds(job.job_id)
        )
