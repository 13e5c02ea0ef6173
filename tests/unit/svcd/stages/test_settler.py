"""The settler and the failer alone: what each answer, and each look at the job, makes of it, and when."""

import io
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from common.scalars import base64_of
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpMined, OpOutcome, OpPending
from svcd.coordinator.requests import Unanswered
from svcd.coordinator.sessions import Body, SignInRefused
from svcd.errors import WorkFailed
from svcd.job.held import CLAIM_DEAD_AFTER, Ahead, ClaimedJob, Failing, Job, SealedJob
from svcd.stages.claimer import STALE
from svcd.stages.settler import Failer, Settler
from tests.fakes.market import START, Market

pytestmark = pytest.mark.trio

MINED, REVERTED = OpMined("0xab", succeeded=True), OpMined("0xab", succeeded=False)
PENDING, AWAY = OpPending("0xab"), Unanswered("no answer")
NOT_CLAIMED: Final = ChainRefused("NotClaimed")
UNKNOWN_RESULT: Final = CoordinatorRefusal(400, "unknown_result")
SLA: Final = 3600.0
CID: Final = "bafkresult"


@attrs.define
class World:
    """Whatever a settle meets, and what became of it. `outcomes` are answered one after the other, the last again and
    again; so are `standings`, each with how it was asked for."""

    outcomes: list[OpOutcome]
    standings: list[str] = attrs.field(factory=lambda: ["held"])
    takes: float = 0.0  # seconds until an answer
    sent: list[tuple[float, Body, float, bool]] = attrs.field(factory=list)
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)
    ends: list[tuple[Any, ...]] = attrs.field(factory=list)
    relayed_in: list[float] = attrs.field(factory=list)
    stale: int = 0
    kept: bytes | io.BytesIO = b"kept"
    began: float = attrs.field(factory=trio.current_time)  # all times here count from it

    # --- the coordinator and the signer
    async def run(self, op: Body, give_up_at: float, *, resend: bool = True) -> OpOutcome:
        self.sent.append((trio.current_time() - self.began, op, give_up_at - self.began, resend))
        await trio.sleep(self.takes)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def settle(self, job_id: bytes, completion_tok: int, issued_at: int) -> Body:
        return {"job": job_id, "tok": completion_tok, "at": issued_at}

    def fail(self, job_id: bytes, issued_at: int) -> Body:
        return {"job": job_id, "at": issued_at}

    def claim(self, job_id: bytes, issued_at: int) -> Body:
        return {"claimed": job_id, "at": issued_at}

    # --- the clock and the timings
    def now(self) -> int:
        return int(trio.current_time() - self.began)

    def was_stale(self) -> None:
        self.stale += 1

    def relayed(self, seconds: float) -> None:
        self.relayed_in.append(seconds)

    # --- the look at the job
    async def standing(self, held: ClaimedJob) -> str:
        return self._stands("standing", held)

    async def after(self, outcome: OpOutcome, held: ClaimedJob) -> str:
        return self._stands("after", outcome, held)

    def _stands(self, *asked: Any) -> str:
        self.asked.append(asked)
        return self.standings.pop(0) if len(self.standings) > 1 else self.standings[0]

    # --- the pipeline and the journal
    async def settled(self, held: ClaimedJob, started: float | None) -> None:
        self.ends.append(("settled", held, started))

    async def failed(self, held: ClaimedJob, reason: str) -> None:
        self.ends.append(("failed", held, reason))

    async def left(self, held: ClaimedJob, reason: str) -> None:
        self.ends.append(("left", held, reason))

    async def send(self, due: float, sealed: SealedJob) -> None:
        self.ends.append(("to upload", due - self.began, sealed.held, sealed.completion_tok, sealed.result_cid))

    async def open_result(self, job_id: bytes) -> bytes | io.BytesIO:
        assert job_id
        return self.kept

    @property
    def to_upload(self) -> "World":
        return self

    @property
    def journal(self) -> "World":
        return self

    @property
    def times(self) -> list[float]:
        return [when for when, *_ in self.sent]

    @property
    def signed(self) -> list[int]:
        return [op["at"] for _, op, *_ in self.sent]


def held(*, sla_secs: float = SLA, sla_ends: float = SLA, ahead: bool = False) -> ClaimedJob:
    market = Market(lambda: START)
    job = attrs.evolve(Job.read(market.jobs[market.post()]), sla_secs=int(sla_secs))
    slot: Any = None
    return ClaimedJob(job, "m", slot, trio.current_time() + sla_ends, ahead=Ahead(1, lambda: None) if ahead else None)


def sealed(job: ClaimedJob, **changed: Any) -> SealedJob:
    return SealedJob(job, 5, 6, **({"result": b"result", "started": 3.0} | changed))


def settling(world: Any) -> Callable[[SealedJob], Awaitable[None]]:
    return Settler(world, world, world, world, world, world).step


def failing(world: Any) -> Callable[[Failing], Awaitable[None]]:
    return Failer(world, world, world, world, world).step


async def failure_of(world: World, job: SealedJob) -> str:
    with pytest.raises(WorkFailed) as failure:
        await settling(world)(job)
    assert world.ends == []
    return failure.value.reason


async def test_settle_carries_the_result_until_the_sla_ends_and_is_sent_once_a_round(autojump_clock: MockClock) -> None:
    await trio.sleep(100)
    world, job = World([MINED], takes=2.0), held()
    await settling(world)(sealed(job))
    [(_, op, give_up_at, resend)] = world.sent
    assert op == {"job": job.job.job_id, "tok": 5, "at": 0, "result": base64_of(b"result")}
    assert (give_up_at, resend) == (SLA, False)
    assert world.ends == [("settled", job, 3.0)]
    assert (world.relayed_in, world.asked, world.stale) == ([2.0], [], 0)


async def test_settle_of_a_job_run_ahead_says_nothing_of_how_long_relays_take(autojump_clock: MockClock) -> None:
    world = World([MINED], takes=2.0)
    await settling(world)(sealed(held(ahead=True)))
    assert world.relayed_in == []


@pytest.mark.parametrize("kept", [b"kept", io.BytesIO(b"kept")], ids=["row", "file"])
async def test_result_of_an_earlier_run_is_read_from_the_journal(
    autojump_clock: MockClock, kept: bytes | io.BytesIO, inline_threads: None
) -> None:
    world = World([MINED], kept=kept)
    await settling(world)(sealed(held(), result=None))
    assert world.sent[0][1]["result"] == base64_of(b"kept")
    assert isinstance(kept, bytes) or kept.closed


async def test_result_that_was_uploaded_is_named_and_uploaded_again_when_the_upload_has_lapsed(
    autojump_clock: MockClock,
) -> None:
    world, job = World([UNKNOWN_RESULT]), held()
    await settling(world)(sealed(job, result=None, result_cid=CID))
    assert world.sent[0][1] == {"job": job.job.job_id, "tok": 5, "at": 0, "result_cid": CID}
    assert world.ends == [("to upload", SLA, job, 5, None)]
    assert await failure_of(World([UNKNOWN_RESULT]), sealed(held())) == "settle_http_400"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (REVERTED, "settle_reverted"),
        (ChainRefused("TooManyUnits"), "settle_TooManyUnits"),
        (CoordinatorRefusal(403, "x"), "settle_rejected"),
        (CoordinatorRefusal(413, None), "settle_result_too_large"),
        (CoordinatorRefusal(500, None), "settle_http_500"),
        (SignInRefused(403, "not_registered"), "session_http_403"),
        (SignInRefused(500, "x"), "session_http_500"),
    ],
)
async def test_refusal_that_another_attempt_would_meet_again_ends_the_job_at_once(
    autojump_clock: MockClock, outcome: OpOutcome, reason: str
) -> None:
    world, job = World([outcome]), held()
    assert await failure_of(world, sealed(job)) == reason
    assert world.times == [0.0]
    assert world.asked == [("after", outcome, job)]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (CoordinatorRefusal(501, None), "settle_http_501"),
        (SignInRefused(502, "x"), "session_http_502"),
        (SignInRefused(None, "x"), "settle_transport_error"),
        (AWAY, "settle_transport_error"),
        (PENDING, "settle_http_504"),
        (STALE, "settle_StaleOp"),
    ],
)
async def test_trouble_that_may_pass_is_tried_again_ever_more_rarely_for_as_long_as_a_pause_is_left_of_the_sla(
    autojump_clock: MockClock, outcome: OpOutcome, reason: str
) -> None:
    world = World([outcome])
    assert await failure_of(world, sealed(held(sla_ends=35.0))) == reason
    assert world.times == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0]  # at 25 s the next would be due as the SLA ends
    assert world.stale == (5 if outcome == STALE else 0)


@pytest.mark.parametrize("outcome", [AWAY, PENDING, REVERTED, CoordinatorRefusal(400, None)])
async def test_job_that_proves_settled_is_settled_whatever_was_answered(
    autojump_clock: MockClock, outcome: OpOutcome
) -> None:
    world, job = World([outcome], ["settled"]), held()
    await settling(world)(sealed(job))
    assert world.ends == [("settled", job, 3.0)]
    assert len(world.sent) == 1


async def test_stale_settle_is_signed_again_and_others_only_when_their_window_nears_its_end(
    autojump_clock: MockClock,
) -> None:
    world = World([STALE, AWAY, MINED])
    await settling(world)(sealed(held()))
    assert (world.times, world.signed) == ([0.0, 1.0, 3.0], [0, 1, 1])
    slow = World([AWAY, AWAY, AWAY, MINED], takes=249.0)
    await settling(slow)(sealed(held()))
    assert (slow.times, slow.signed) == ([0.0, 250.0, 501.0, 754.0], [0, 0, 501, 501])
    edge = World([AWAY, AWAY, AWAY, MINED], takes=248.5)
    await settling(edge)(sealed(held()))
    assert (edge.times, edge.signed) == ([0.0, 249.5, 500.0, 752.5], [0, 0, 0, 752])


@pytest.mark.parametrize("reason", ["NotClaimed", "UnknownJob"])
async def test_claim_that_a_reorganisation_took_is_waited_for_until_it_cannot_come_back(
    autojump_clock: MockClock, reason: str
) -> None:
    world, job = World([ChainRefused(reason)], ["unknown"]), held(sla_secs=SLA, sla_ends=SLA)
    assert await failure_of(world, sealed(job)) == f"settle_{reason}"
    last = world.times[-1]
    assert CLAIM_DEAD_AFTER <= last < CLAIM_DEAD_AFTER + 10  # claimed at 0
    # While it may come back, one look tells as much as many; after that the index is waited for.
    assert {kind for kind, *_ in world.asked[:-1]} == {"standing"}
    assert world.asked[-1] == ("after", ChainRefused(reason), job)


async def test_job_whose_claim_does_not_come_back_is_claimed_anew_and_settled(autojump_clock: MockClock) -> None:
    """The chain refused the claim when it was sent again: waiting alone would bring nothing."""
    await trio.sleep(100)
    world, job = World([*[NOT_CLAIMED] * 5, AWAY, *[NOT_CLAIMED] * 3, MINED, MINED], ["open"]), held()
    await settling(world)(sealed(job))
    claims = [(when, give_up_at, op) for when, op, give_up_at, _ in world.sent if "claimed" in op]
    assert claims == [
        (25.0, 115.0, {"claimed": job.job.job_id, "at": 25}),
        (55.0, 145.0, {"claimed": job.job.job_id, "at": 55}),
    ]
    assert world.times == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 25.0, 35.0, 45.0, 55.0, 55.0]
    assert world.ends == [("settled", job, 3.0)]


async def test_claim_that_may_be_back_by_itself_is_not_sent_a_second_time(autojump_clock: MockClock) -> None:
    """Nor one that runs ahead, whose first is under way."""
    standings = ["open", "open", "open", "open", "held", "open", "open", "held"]
    world = World([*[NOT_CLAIMED] * 8, MINED], standings)
    await settling(world)(sealed(held()))
    assert not [op for _, op, *_ in world.sent if "claimed" in op]
    early = World([*[NOT_CLAIMED] * 8, MINED], ["open"])
    await settling(early)(sealed(held(ahead=True)))
    assert not [op for _, op, *_ in early.sent if "claimed" in op]


async def test_job_is_not_claimed_anew_beyond_its_window(autojump_clock: MockClock) -> None:
    world = World([NOT_CLAIMED], ["open"])
    assert await failure_of(world, sealed(held(sla_secs=60, sla_ends=60))) == "settle_NotClaimed"
    assert [(op["at"], give_up_at) for _, op, give_up_at, _ in world.sent if "claimed" in op] == [
        (25, 60.0),
        (55, 60.0),
    ]


async def test_claim_is_dead_at_the_second_at_which_its_signature_ends(autojump_clock: MockClock) -> None:
    world = World([ChainRefused("NotClaimed")], takes=CLAIM_DEAD_AFTER)
    assert await failure_of(world, sealed(held())) == "settle_NotClaimed"
    assert world.times == [0.0]


async def test_what_may_pass_ends_early_when_the_job_has_ended(autojump_clock: MockClock) -> None:
    world = World([ChainRefused("NotClaimed")], ["unknown", "ended"])
    assert await failure_of(world, sealed(held())) == "settle_NotClaimed"
    assert len(world.sent) == 2


async def test_fail_is_sent_again_until_it_is_taken(autojump_clock: MockClock) -> None:
    world, job = World([AWAY, MINED]), held()
    await failing(world)(Failing(job, "backend_error"))
    assert world.ends == [("failed", job, "backend_error")]
    assert world.times == [0.0, 1.0]
    assert world.sent[1][1] == {"job": job.job.job_id, "at": 1}  # signed anew
    assert world.asked == [("after", AWAY, job)]


@pytest.mark.parametrize(
    ("outcome", "standing", "end"),
    [
        (REVERTED, "settled", ("settled", None)),
        (AWAY, "ended", ("failed", "why")),
        (ChainRefused("NotTheClaimer"), "held", ("left", "why")),
    ],
)
async def test_fail_ends_with_what_the_chain_says_of_the_job(
    autojump_clock: MockClock, outcome: OpOutcome, standing: str, end: tuple[str, str | None]
) -> None:
    world, job = World([outcome], [standing]), held()
    await failing(world)(Failing(job, "why"))
    assert world.ends == [(end[0], job, end[1])]
    assert world.times == [0.0]


async def test_fail_that_is_stale_sets_the_clock_and_is_sent_again(autojump_clock: MockClock) -> None:
    world, job = World([STALE, STALE, REVERTED, MINED]), held()
    await failing(world)(Failing(job, "why"))
    assert (world.stale, world.times) == (2, [0.0, 1.0, 3.0, 7.0])
    assert world.ends == [("failed", job, "why")]


@pytest.mark.parametrize(("sla_ends", "last"), [(90.0, 61.0), (0.0, 31.0)])
async def test_fail_is_tried_until_the_sla_ends_and_for_a_minute_at_least(
    autojump_clock: MockClock, sla_ends: float, last: float
) -> None:
    world, job = World([AWAY], ["unknown"]), held(sla_ends=sla_ends)
    await failing(world)(Failing(job, "why"))
    assert world.ends == [("left", job, "why")]
    assert world.times == [when for when in (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0) if when <= last]
    until = max(sla_ends, 60.0)
    assert [give_up_at for _, _, give_up_at, _ in world.sent] == [min(until, when + 60.0) for when in world.times]


async def test_fail_whose_next_attempt_would_come_as_its_time_ends_is_the_last(autojump_clock: MockClock) -> None:
    world = World([AWAY], ["unknown"])
    await failing(world)(Failing(held(sla_ends=61.0), "why"))
    assert world.times == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
