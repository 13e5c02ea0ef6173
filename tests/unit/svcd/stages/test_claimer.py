"""The claimer and the look-up alone: the effect of each answer on the job and the provider, and how long each waits."""

from typing import Any, Final

import attrs
import pytest
import trio

from common.api.states import JobState
from common.messages.jobs import Order
from svcd.base.errors import Unavailable
from svcd.coordinator.op_signer import RequestBody
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    OpStored,
    Unanswered,
)
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.book_row import Job
from svcd.journal.held_job import ClaimedJob, PendingClaim
from svcd.stages.claimer import STALE_OP, Claimer
from svcd.stages.job_lookup import JobLookup
from svcd.stages.offers import Offer
from svcd.stages.pipeline import Pipeline
from tests.support.fakes.market import START, Market
from tests.unit.svcd.stages.running import count

US, ANOTHER = 7, 8
MINED, REVERTED = OpMined("0xab", succeeded=True), OpMined("0xab", succeeded=False)
AWAY, NOT_OPEN = Unanswered("no answer"), ChainRefused("NotOpen")
OPEN, CLAIMED, SETTLED, CANCELLED = JobState.OPEN, JobState.CLAIMED, JobState.SETTLED, JobState.CANCELLED
SLA: Final = 3600.0


@attrs.define
class World:
    """Everything that a claim depends on. `outcomes` and `rows` are used in turn, and the last one repeats. A row is
    a state and a provider, None (unknown), or "away" (no answer)."""

    outcomes: list[OpOutcome | OpStored | Exception] = attrs.field(factory=lambda: [MINED])
    rows: list[tuple[JobState, int] | str | None] = attrs.field(factory=lambda: [None])
    permits: PendingClaim | None = None
    withheld: bool = False
    known: bool = False  # the journal has a result of the job
    claimed_at: int = 0  # on the chain, in seconds after the world began
    takes: float = 0.0
    events: list[tuple[Any, ...]] = attrs.field(factory=list)
    sent: list[tuple[str, RequestBody, float]] = attrs.field(factory=list)
    lookup_times: list[float] = attrs.field(factory=list)
    began: float = attrs.field(factory=trio.current_time)

    job_: Job = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        market = Market(lambda: START)
        self.job_ = attrs.evolve(Job.read(market.jobs[market.post()]), sla_secs=int(SLA))

    @property
    def since(self) -> float:
        return trio.current_time() - self.began

    def offer(self, *, pending: bool = False) -> Offer:
        slot: Any = Slot(self)
        return Offer(self.job_, "m", slot, pending)

    def held(self, ahead: PendingClaim | None = None) -> ClaimedJob:
        slot: Any = Slot(self)
        return ClaimedJob(self.job_, "m", slot, trio.current_time() + SLA, pending_claim=ahead)

    def lookup(self) -> JobLookup:
        coordinator: Any = Coordinator(self)
        clock: Any = Clock(self)
        return JobLookup(coordinator, clock, US)


@attrs.frozen
class Coordinator:
    world: World

    async def send_op(self, op: RequestBody, give_up_at: float) -> OpOutcome:
        return await self._answer("run", op, give_up_at)

    async def store_op(self, op: RequestBody, give_up_at: float) -> OpOutcome | OpStored:
        return await self._answer("store", op, give_up_at)

    async def _answer(self, how: str, op: RequestBody, give_up_at: float) -> Any:
        world = self.world
        world.sent.append((how, op, give_up_at - world.began))
        await trio.sleep(world.takes)
        outcome = world.outcomes.pop(0) if len(world.outcomes) > 1 else world.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def read_job(self, job_id: bytes) -> Job | None:
        world = self.world
        assert job_id == world.job_.job_id
        world.lookup_times.append(world.since)
        row = world.rows.pop(0) if len(world.rows) > 1 else world.rows[0]
        if row is None:
            return None
        if isinstance(row, str):
            raise Unavailable(row)
        return attrs.evolve(world.job_, state=row[0], provider_id=row[1], claimed_at=START + world.claimed_at)


class Signer:
    def sign_claim(self, job_id: bytes, order: Order, issued_at: int) -> RequestBody:
        return {"job": job_id, "at": issued_at}


@attrs.frozen
class Clock:
    world: World

    def now(self) -> int:
        return int(self.world.since)

    def to_loop_time(self, unix_seconds: float) -> float:
        return self.world.began + unix_seconds - START

    def switch_time_source(self) -> None:
        self.world.events.append(("time source switched",))


@attrs.frozen
class Timings:
    world: World

    def record_relay(self, seconds: float) -> None:
        self.world.events.append(("relayed", seconds))


@attrs.frozen
class Health:
    world: World

    def withholds(self, model: str, sla_secs: int | None = None) -> bool:
        assert (model, sla_secs) == ("m", SLA)
        return self.world.withheld


@attrs.frozen
class Limits:
    world: World

    async def permit(self, offer: Offer) -> PendingClaim | None:
        return self.world.permits


@attrs.frozen
class Slot:
    world: World

    def release(self) -> None:
        self.world.events.append(("slot released",))


@attrs.frozen
class Journal:
    world: World

    async def record_claiming(self, job: Job, model: str) -> bool:
        self.world.events.append(("claiming", model))
        return not self.world.known

    async def record_claimed(self, job_id: bytes) -> None:
        self.world.events.append(("claimed",))

    async def record_end(self, job_id: bytes, state: str, reason: str) -> None:
        self.world.events.append((state, reason))


@attrs.frozen
class Exclusions:
    world: World

    def exclude_briefly(self, job_id: bytes) -> None:
        self.world.events.append(("job excluded",))

    def pause_model(self, model: str) -> None:
        self.world.events.append(("model paused", model))


@attrs.frozen
class ToOpen:
    world: World

    async def send(self, due: float, held: ClaimedJob) -> None:
        self.world.events.append(("to open", due - self.world.began, held.pending_claim))


def claimer(world: World, offers: Any = None) -> Claimer:
    unused: Any = None
    journal, exclusions, to_open = Journal(world), Exclusions(world), ToOpen(world)
    given: dict[str, Any] = {
        "coordinator": Coordinator(world),
        "signer": Signer(),
        "clock": Clock(world),
        "pipeline": Pipeline(journal, exclusions, to_open, *[unused] * 5),
        "offers": offers,
        "timings": Timings(world),
        "health": Health(world),
        "ahead_limits": Limits(world),
    }
    return Claimer(provider_id=US, **given)


async def events_of_claim(world: World, *, pending: bool = False) -> list[tuple[Any, ...]]:
    """Claim one offer. Return the events that the collaborators recorded."""
    await claimer(world)._claim(world.offer(pending=pending))
    return world.events


async def test_mined_claim_is_opened_until_its_sla_ends() -> None:
    before = count("svcd_jobs_claimed_total")
    await trio.sleep(100)
    world = World(takes=2.0)
    assert await events_of_claim(world) == [("claiming", "m"), ("relayed", 2.0), ("claimed",), ("to open", SLA, None)]
    assert world.sent == [("run", {"job": world.job_.job_id, "at": 0}, 90.0)]
    assert count("svcd_jobs_claimed_total") == before + 1


async def test_claim_that_waited_for_its_post_is_not_timed() -> None:
    assert ("relayed", 0.0) not in await events_of_claim(World(), pending=True)


async def test_job_withheld_after_its_offer_is_not_claimed() -> None:
    world = World(withheld=True)
    assert await events_of_claim(world) == [("slot released",)]
    assert world.sent == []


async def test_job_that_was_worked_on_before_is_left_for_a_while() -> None:
    world = World(known=True)
    assert await events_of_claim(world) == [("claiming", "m"), ("job excluded",), ("slot released",)]
    assert world.sent == []


@pytest.mark.parametrize(
    ("outcome", "expected_events", "reason"),
    [
        (ChainRefused("PaymentRefused"), [("job excluded",)], "PaymentRefused"),
        (ChainRefused("AtCapacity"), [("model paused", "m")], "AtCapacity"),
        (STALE_OP, [("time source switched",), ("model paused", "m")], "StaleOp"),
        (SignInRefused(403, "x"), [("model paused", "m")], "status 403: x"),
        (CoordinatorRefusal(499, "x"), [("model paused", "m")], "status 499: x"),
        (REVERTED, [], "mined and reverted in 0xab"),
    ],
)
async def test_refused_claim_frees_its_slot_and_assigns_blame(
    outcome: OpOutcome, expected_events: list[tuple[str, ...]], reason: str
) -> None:
    world = World([outcome])
    assert await events_of_claim(world) == [
        ("claiming", "m"),
        *expected_events,
        ("not_claimed", reason),
        ("slot released",),
    ]
    assert world.lookup_times == []


@pytest.mark.parametrize("pending", [True, False])
async def test_unknown_job_is_fine_while_its_post_is_pending(pending: bool) -> None:
    events = await events_of_claim(World([ChainRefused("UnknownJob")]), pending=pending)
    assert (("job excluded",) in events) is not pending
    assert ("job excluded",) in await events_of_claim(World([ChainRefused("PaymentRefused")]), pending=True)


@pytest.mark.parametrize("outcome", [AWAY, NOT_OPEN, CoordinatorRefusal(500, None), OpPending("0xab")])
async def test_ambiguous_claim_is_looked_up_until_it_ends(outcome: OpOutcome) -> None:
    world = World([outcome], ["away", None, (OPEN, US), (CLAIMED, US)])
    events = await events_of_claim(world)
    assert events[-2:] == [("claimed",), ("to open", SLA, None)]
    assert world.lookup_times == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("row", [(CLAIMED, ANOTHER), (SETTLED, US), (CANCELLED, US)])
async def test_job_that_is_anothers_or_has_ended_is_not_claimed(row: tuple[JobState, int]) -> None:
    events = await events_of_claim(World([AWAY], [row]))
    assert events[-2:] == [("not_claimed", "no answer"), ("slot released",)]


async def test_unheard_claim_is_left_to_reconciliation() -> None:
    world = World([AWAY], [(OPEN, 0)])
    assert await events_of_claim(world) == [("claiming", "m"), ("slot released",)]
    assert world.lookup_times == [2.0 * n for n in range(45)]  # the next look would come when the time is over


async def test_unexpected_failure_costs_no_slot() -> None:
    world = World([ZeroDivisionError(), MINED])
    offers = [world.offer(), world.offer()]

    @attrs.frozen
    class Channel:
        async def receive(self) -> Offer:
            return offers.pop(0) if offers else await trio.sleep_forever()

    with trio.move_on_after(10):
        await claimer(world, Channel()).serve()
    assert world.events[:2] == [("claiming", "m"), ("slot released",)]
    assert world.events[-1] == ("to open", SLA, None)


def permit() -> tuple[PendingClaim, list[str]]:
    over: list[str] = []
    return PendingClaim(5, lambda: over.append("over")), over


async def test_job_run_ahead_is_opened_before_its_claim() -> None:
    ahead, over = permit()
    world = World([OpStored(), MINED], permits=ahead)
    assert await events_of_claim(world, pending=True) == [("claiming", "m"), ("to open", SLA, ahead), ("claimed",)]
    assert [(how, until) for how, _, until in world.sent] == [("store", 90.0), ("run", 90.0)]
    assert world.sent[0][1] == world.sent[1][1]
    assert (ahead.is_confirmed, over) == (True, ["over"])


async def test_job_run_ahead_whose_claim_is_refused_is_refused_with_it() -> None:
    ahead, over = permit()
    world = World([OpStored(), STALE_OP], permits=ahead)
    assert await events_of_claim(world) == [
        ("claiming", "m"),
        ("to open", SLA, ahead),
        ("time source switched",),
        ("model paused", "m"),
    ]
    assert (ahead.is_confirmed, ahead.is_decided, over) == (False, True, ["over"])
    assert ahead._refusal == "StaleOp"


async def test_job_run_ahead_without_a_known_end_stays_at_stake() -> None:
    ahead, over = permit()
    world = World([OpStored(), AWAY], permits=ahead)
    assert await events_of_claim(world) == [("claiming", "m"), ("to open", SLA, ahead)]
    assert (ahead.is_decided, over) == (False, [])


@pytest.mark.parametrize("row", [(CLAIMED, US), (SETTLED, US)], ids=["claimed", "already settled"])
async def test_unanswered_claim_is_confirmed_by_the_index(row: tuple[JobState, int]) -> None:
    """The job started before its claim was mined, so this provider may even have settled it."""
    ahead, _ = permit()
    world = World([OpStored(), AWAY], [row], permits=ahead)
    await claimer(world)._claim(world.offer())
    assert ahead.is_confirmed


async def test_coordinator_that_cannot_store_a_claim_tells_its_end() -> None:
    ahead, over = permit()
    world = World([MINED], permits=ahead)
    assert (await events_of_claim(world))[-1] == ("to open", SLA, None)
    assert ([how for how, *_ in world.sent], over) == (["store"], ["over"])


async def test_job_is_run_ahead_with_a_permit_only() -> None:
    given: Any = (world := World())
    claimer = Claimer(given, given, given, US, given, given, given, given, given)
    with pytest.raises(AssertionError, match="permit"):
        await claimer._run_ahead(world.held(), world.offer(), {}, 0.0)


@pytest.mark.parametrize(
    ("row", "standing"),
    [
        ((OPEN, 0), "open"),
        ((CLAIMED, US), "held"),
        ((SETTLED, US), "settled"),
        ((CANCELLED, US), "ended"),
        ((SETTLED, ANOTHER), "unknown"),
        ((CANCELLED, ANOTHER), "unknown"),
        ((SETTLED, 0), "unknown"),
        ((CANCELLED, 0), "ended"),  # the claim was not on the chain when the job expired
        (None, "unknown"),
        ("away", "unknown"),
    ],
)
async def test_job_stands_as_the_index_says_where_it_is_ours(
    row: tuple[JobState, int] | str | None, standing: str
) -> None:
    world = World(rows=[row])
    assert (await world.lookup().look_up(world.held())).state == standing


async def test_expired_job_run_ahead_ends_only_if_claimed_before() -> None:
    """Otherwise the claim is pending, and its answer decides."""
    world, (ahead, _) = World(rows=[(CANCELLED, 0)]), permit()
    job = attrs.evolve(world.held(), pending_claim=ahead)
    assert (await world.lookup().look_up(job)).state == "unknown"
    ahead.confirm()
    assert (await world.lookup().look_up(job)).state == "ended"


@pytest.mark.parametrize(("state", "begins"), [(OPEN, 100), (CLAIMED, 70)])
async def test_job_found_has_the_window_of_its_newest_claim(state: JobState, begins: int) -> None:
    """A claimed job counts from the claim on the chain, which a reorg may have moved. An open job counts from now,
    when the next claim can be mined at the earliest."""
    world = World(rows=[(state, US)], claimed_at=70)
    job = world.held()
    await trio.sleep(100)
    assert (await world.lookup().look_up(job)).claimed_job.window_ends_at == world.began + begins + SLA


@pytest.mark.parametrize("row", [(CLAIMED, US), (SETTLED, ANOTHER), None, "away"])
async def test_job_keeps_its_window_without_a_later_claim(row: tuple[JobState, int] | str | None) -> None:
    world = World(rows=[row])
    job = world.held()
    await trio.sleep(100)
    assert (await world.lookup().look_up(job)).claimed_job is job


@pytest.mark.parametrize("confirmed", [True, False])
async def test_job_run_ahead_gets_no_window_before_its_claim(*, confirmed: bool) -> None:
    world, (ahead, _) = World(rows=[(OPEN, 0)]), permit()
    job = attrs.evolve(world.held(), pending_claim=ahead)
    if confirmed:
        ahead.confirm()
    await trio.sleep(100)
    assert (await world.lookup().look_up(job)).claimed_job.window_ends_at == world.began + SLA + (
        100 if confirmed else 0
    )


@pytest.mark.parametrize("row", [(SETTLED, US), (CANCELLED, US)])
async def test_lagging_index_is_waited_for(row: tuple[JobState, int]) -> None:
    world = World(rows=[(CLAIMED, US), None, row])
    found = await world.lookup().look_up_after(ChainRefused("NotClaimed"), world.held())
    assert found.state == ("settled" if row[0] == SETTLED else "ended")
    assert world.lookup_times == [0.0, 2.0, 4.0]


async def test_open_index_confirms_a_missing_claim() -> None:
    world = World(rows=[None, (JobState.OPEN, 0)])
    assert (await world.lookup().look_up_after(ChainRefused("NotClaimed"), world.held())).state == "open"
    assert world.lookup_times == [0.0, 2.0]


async def test_lagging_index_is_waited_for_at_most_a_minute() -> None:
    world = World(rows=[(CLAIMED, US)])
    assert (await world.lookup().look_up_after(ChainRefused("NotClaimed"), world.held())).state == "held"
    assert world.lookup_times == [2.0 * n for n in range(31)]


@pytest.mark.parametrize("outcome", [ChainRefused("SlaExpired"), AWAY, REVERTED])
async def test_index_is_believed_at_once_after_any_other_answer(outcome: OpOutcome) -> None:
    world = World(rows=[(CLAIMED, US)])
    assert (await world.lookup().look_up_after(outcome, world.held())).state == "held"
    assert world.lookup_times == [0.0]
