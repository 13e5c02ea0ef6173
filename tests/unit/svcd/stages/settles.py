"""Everything around a single settle, upload or fail: scripted answers, and a record of the outcome."""

import io
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from common.messages.jobs import Order
from svcd.coordinator.op_signer import RequestBody
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    Unanswered,
    UploadOutcome,
)
from svcd.journal.book_row import Job
from svcd.journal.held_job import ClaimedJob, PendingClaim, SealedJob
from svcd.stages.job_lookup import IndexedState, LookupResult
from tests.support.fakes.market import START, Market

MINED, REVERTED = OpMined("0xab", succeeded=True), OpMined("0xab", succeeded=False)
PENDING, AWAY = OpPending("0xab"), Unanswered("no answer")
NOT_CLAIMED: Final = ChainRefused("NotClaimed")
UNKNOWN_RESULT: Final = CoordinatorRefusal(400, "unknown_result")
SLA: Final = 3600.0
EXPIRES: Final = 3600.0  # seconds after START, which is when a world begins
CID: Final = "bafkresult"


@attrs.define
class World:
    """Everything that a settle depends on, and its outcome. `outcomes` and `standings` are scripted answers, used in
    turn. The last one repeats. `asked` records the requests for standings."""

    outcomes: Sequence[OpOutcome | UploadOutcome]
    standings: list[IndexedState] = attrs.field(factory=lambda: ["held"])
    claimed_at: float | None = None  # from the chain, when it differs from the known time
    takes: float = 0.0  # seconds until an answer
    sent: list[tuple[float, RequestBody, float, bool]] = attrs.field(factory=list)
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)
    ends: list[tuple[Any, ...]] = attrs.field(factory=list)
    relayed_in: list[float] = attrs.field(factory=list)
    stale: int = 0
    kept: bytes | io.BytesIO = b"kept"
    began: float = attrs.field(factory=trio.current_time)  # all times here count from this one

    @property
    def sent_at(self) -> list[float]:
        return [when for when, *_ in self.sent]

    @property
    def claims(self) -> list[tuple[float, float, RequestBody]]:
        return [(when, give_up_at, op) for when, op, give_up_at, _ in self.sent if "claimed" in op]

    @property
    def signed_at(self) -> list[int]:
        return [op["at"] for _, op, *_ in self.sent]

    @property
    def now(self) -> float:
        return trio.current_time() - self.began

    def collaborators(self, *names: str) -> dict[str, Any]:
        """Return these arguments of a stage. All record in this world."""
        known = {
            "coordinator": Coordinator,
            "signer": Signer,
            "clock": Clock,
            "lookup": Lookups,
            "timings": Timings,
            "pipeline": Ends,
        }
        return {name: known[name](self) for name in names}


@attrs.frozen
class Coordinator:
    world: World

    async def send_op(self, op: RequestBody, give_up_at: float, *, resend: bool = True) -> Any:
        world = self.world
        world.sent.append((world.now, op, give_up_at - world.began, resend))
        await trio.sleep(world.takes)
        outcome, *later = world.outcomes
        world.outcomes = later or [outcome]
        return outcome

    async def upload_result(self, content: bytes, give_up_at: float) -> Any:
        return await self.send_op({"uploaded": content}, give_up_at)


@attrs.frozen
class Signer:
    world: World

    def sign_settle(self, job_id: bytes, completion_tok: int, issued_at: int) -> RequestBody:
        return {"job": job_id, "tok": completion_tok, "at": issued_at}

    def sign_fail(self, job_id: bytes, issued_at: int) -> RequestBody:
        return {"job": job_id, "at": issued_at}

    def sign_claim(self, job_id: bytes, order: Order, issued_at: int) -> RequestBody:
        return {"claimed": job_id, "at": issued_at}


@attrs.frozen
class Clock:
    world: World

    def now(self) -> int:
        return int(self.world.now)

    def switch_time_source(self) -> None:
        self.world.stale += 1

    def to_loop_time(self, unix_seconds: float) -> float:
        return self.world.began + unix_seconds - START


@attrs.frozen
class Timings:
    world: World

    def record_relay(self, seconds: float) -> None:
        self.world.relayed_in.append(seconds)


@attrs.frozen
class Lookups:
    world: World

    async def look_up(self, held: ClaimedJob) -> LookupResult:
        return self._found(held, "of", held)

    async def look_up_after(self, outcome: OpOutcome, held: ClaimedJob) -> LookupResult:
        return self._found(held, "after", outcome, held)

    def _found(self, held: ClaimedJob, *asked: Any) -> LookupResult:
        world = self.world
        world.asked.append(asked)
        standing = world.standings.pop(0) if len(world.standings) > 1 else world.standings[0]
        if standing == "open" and held.was_claimed:
            held = held.with_window_from(trio.current_time())
        elif standing == "held" and world.claimed_at is not None:
            held = held.with_window_from(world.began + world.claimed_at)
        return LookupResult(standing, held)


@attrs.frozen
class Journal:
    world: World

    async def record_upload(self, job_id: bytes, cid: str) -> None:
        self.world.ends.append(("uploaded", cid))

    async def open_result(self, job_id: bytes) -> bytes | io.BytesIO:
        assert job_id
        return self.world.kept


@attrs.frozen
class Channel:
    world: World

    async def send(self, due: float, sealed: SealedJob) -> None:
        way = "to settle" if sealed.result_cid else "to upload"
        seconds = due - self.world.began
        self.world.ends.append((way, seconds, sealed.claimed_job, sealed.completion_tok, sealed.result_cid))


@attrs.frozen
class Ends:
    """The pipeline: how jobs end, the journal, and the channels to the next stages."""

    world: World

    @property
    def journal(self) -> Journal:
        return Journal(self.world)

    @property
    def to_upload(self) -> Channel:
        return Channel(self.world)

    @property
    def to_settle(self) -> Channel:
        return Channel(self.world)

    async def record_settled(self, held: ClaimedJob, started: float | None) -> None:
        self.world.ends.append(("settled", held, started))

    async def record_failed(self, held: ClaimedJob, reason: str) -> None:
        self.world.ends.append(("failed", held, reason))

    async def record_given_up(self, held: ClaimedJob, reason: str) -> None:
        self.world.ends.append(("left", held, reason))


def held(*, sla_secs: float = SLA, window_ends_at: float = SLA, ahead: bool = False) -> ClaimedJob:
    market = Market(lambda: START)
    job = attrs.evolve(Job.read(market.jobs[market.post()]), sla_secs=int(sla_secs))
    slot: Any = None
    return ClaimedJob(
        job,
        "m",
        slot,
        trio.current_time() + window_ends_at,
        pending_claim=PendingClaim(1, lambda: None) if ahead else None,
    )


def sealed(job: ClaimedJob, **changed: Any) -> SealedJob:
    return SealedJob(job, 5, 6, **({"result": b"result", "started_at": 3.0} | changed))
