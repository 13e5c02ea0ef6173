"""Everything around a single settle, upload or fail: scripted answers, and a record of the outcome."""

import io
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from common.messages.jobs import Order
from svcd.coordinator.op_signer import Body
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
from svcd.journal.held_job import Ahead, ClaimedJob, SealedJob
from svcd.stages.op_lookup import LookedUp, Standing
from tests.fakes.market import START, Market

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
    standings: list[Standing] = attrs.field(factory=lambda: ["held"])
    claimed_at: float | None = None  # from the chain, when it differs from the known time
    takes: float = 0.0  # seconds until an answer
    sent: list[tuple[float, Body, float, bool]] = attrs.field(factory=list)
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)
    ends: list[tuple[Any, ...]] = attrs.field(factory=list)
    relayed_in: list[float] = attrs.field(factory=list)
    stale: int = 0
    kept: bytes | io.BytesIO = b"kept"
    began: float = attrs.field(factory=trio.current_time)  # all times here count from this one

    # --- coordinator and signer
    async def run(self, op: Body, give_up_at: float, *, resend: bool = True) -> Any:
        self.sent.append((trio.current_time() - self.began, op, give_up_at - self.began, resend))
        await trio.sleep(self.takes)
        outcome, *later = self.outcomes
        self.outcomes = later or [outcome]
        return outcome

    async def upload(self, content: bytes, give_up_at: float) -> Any:
        return await self.run({"uploaded": content}, give_up_at)

    def settle(self, job_id: bytes, completion_tok: int, issued_at: int) -> Body:
        return {"job": job_id, "tok": completion_tok, "at": issued_at}

    def fail(self, job_id: bytes, issued_at: int) -> Body:
        return {"job": job_id, "at": issued_at}

    def claim(self, job_id: bytes, order: Order, issued_at: int) -> Body:
        return {"claimed": job_id, "at": issued_at}

    # --- clock and timings
    def now(self) -> int:
        return int(trio.current_time() - self.began)

    def was_stale(self) -> None:
        self.stale += 1

    def in_loop_time(self, unix_seconds: float) -> float:
        return self.began + unix_seconds - START

    def relayed(self, seconds: float) -> None:
        self.relayed_in.append(seconds)

    # --- look-up of the job
    async def of(self, held: ClaimedJob) -> LookedUp:
        return self._found(held, "of", held)

    async def after(self, outcome: OpOutcome, held: ClaimedJob) -> LookedUp:
        return self._found(held, "after", outcome, held)

    def _found(self, held: ClaimedJob, *asked: Any) -> LookedUp:
        self.asked.append(asked)
        standing = self.standings.pop(0) if len(self.standings) > 1 else self.standings[0]
        if standing == "open" and held.was_claimed:
            held = held.in_window_of(trio.current_time())
        elif standing == "held" and self.claimed_at is not None:
            held = held.in_window_of(self.began + self.claimed_at)
        return LookedUp(standing, held)

    # --- pipeline and journal
    async def settled(self, held: ClaimedJob, started: float | None) -> None:
        self.ends.append(("settled", held, started))

    async def failed(self, held: ClaimedJob, reason: str) -> None:
        self.ends.append(("failed", held, reason))

    async def left(self, held: ClaimedJob, reason: str) -> None:
        self.ends.append(("left", held, reason))

    async def uploaded(self, job_id: bytes, cid: str) -> None:
        self.ends.append(("uploaded", cid))

    async def send(self, due: float, sealed: SealedJob) -> None:
        way = "to settle" if sealed.result_cid else "to upload"
        self.ends.append((way, due - self.began, sealed.held, sealed.completion_tok, sealed.result_cid))

    async def open_result(self, job_id: bytes) -> bytes | io.BytesIO:
        assert job_id
        return self.kept

    @property
    def to_upload(self) -> "World":
        return self

    @property
    def to_settle(self) -> "World":
        return self

    @property
    def journal(self) -> "World":
        return self

    @property
    def times(self) -> list[float]:
        return [when for when, *_ in self.sent]

    @property
    def claims(self) -> list[tuple[float, float, Body]]:
        return [(when, give_up_at, op) for when, op, give_up_at, _ in self.sent if "claimed" in op]

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
