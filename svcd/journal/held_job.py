"""Jobs of the provider: a row of the book, the slot that it takes, and what each stage adds on its way to the next."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Self

import attrs
import trio

from common.api.fields import (
    ADDRESS,
    BYTES32,
    SIGNATURE,
    UINT32,
    UINT64,
    UINT128,
    UINT256,
    Schema,
    Text,
    read_object,
    wire,
)
from common.api.states import JobState
from common.box import PublicKey
from common.messages.jobs import Order
from common.pricing.model_input import Modality
from common.refusal import Refused
from svcd.base import metrics
from svcd.base.errors import UNPAID, WorkFailed

# A row of the job book, read strictly: a foreign coordinator's answer is this and nothing else, or `Refused`.

_LONGEST_CID: Final = 1 << 20  # the answer that holds it has a limit of its own


@attrs.frozen(slots=True)
class _State:
    """A job's state, as the registry numbers it."""

    def read(self, value: object, param: str) -> JobState:
        for state in JobState:
            if value == state:
                return state
        raise Refused(f"{param} must be the number of a job state", param)

    def schema(self) -> Schema:
        return {"type": "integer", "enum": [int(state) for state in JobState]}


@attrs.frozen(slots=True, kw_only=True)
class Job:
    job_id: bytes = wire(BYTES32)
    owner: bytes = wire(ADDRESS)
    c: bytes = wire(BYTES32)
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    designated: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    expires_at: int = wire(UINT64)
    provider_id: int = wire(UINT32, "0 until claimed")
    claimed_at: int = wire(UINT64)
    state: JobState = wire(_State())
    task_cid: str = wire(Text(_LONGEST_CID))
    posted_block: int = wire(UINT64, "where the coordinator saw the post", optional=True, default=0)

    @classmethod
    def read(cls, row: object) -> Self:
        """`Refused` for what is no row of the book."""
        if not isinstance(row, dict):
            raise Refused("a job must be an object")
        if row.get("posted_block", 0) is None:
            raise Refused("posted_block must be a number", "posted_block")
        return read_object(cls, row)

    @property
    def order(self) -> Order:
        """Terms that the job's owner signed."""
        return Order(**{field.name: getattr(self, field.name) for field in attrs.fields(Order)})

    def as_row(self) -> dict[str, object]:
        """The JSON values that `read` reads back."""
        return {name: _written(value) for name, value in attrs.asdict(self).items()}


@attrs.frozen(slots=True, kw_only=True)
class PendingOffer:
    """A job whose post is not in a block yet, offered to us for a moment, and what its owner signed."""

    job_id: bytes = wire(BYTES32)
    owner: bytes = wire(ADDRESS)
    c: bytes = wire(BYTES32)
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    designated: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    expires_at: int = wire(UINT64)
    task_cid: str = wire(Text(_LONGEST_CID))
    signature: bytes = wire(SIGNATURE)
    auth_sig: bytes = wire(SIGNATURE)
    amount: int = wire(UINT256)

    @classmethod
    def read(cls, row: object) -> Self:
        if not isinstance(row, dict):
            raise Refused("a pending job must be an object")
        return read_object(cls, row)

    def job(self, block: int) -> Job:
        """As the book will have it; its post is looked for from this block on."""
        return Job(
            job_id=self.job_id,
            owner=self.owner,
            c=self.c,
            model_id=self.model_id,
            sla_secs=self.sla_secs,
            designated=self.designated,
            rate_in=self.rate_in,
            rate_out=self.rate_out,
            units_in=self.units_in,
            units_out=self.units_out,
            expires_at=self.expires_at,
            provider_id=0,
            claimed_at=0,
            state=JobState.OPEN,
            task_cid=self.task_cid,
            posted_block=block,
        )


def _written(value: bytes | str | int) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if isinstance(value, str) else int(value) if isinstance(value, JobState) else str(value)


# Slots: the jobs that are held, and how many more may be.
#
# A slot is taken before a job is claimed and given back when the job has ended, however it ended; a slot given back
# twice counts once.


@attrs.define(slots=True, eq=False)
class Slot:
    model: str
    job_id: bytes
    _slots: "Slots"
    _given_back: bool = False

    def give_back(self, *, settled: bool = False) -> None:
        if not self._given_back:
            self._given_back = True
            self._slots.take_back(self, settled=settled)


@attrs.define(slots=True, eq=False)
class Slots:
    """`by_model`: the configured slots. `granted` is what the network allows over all models, once it is known."""

    by_model: Mapping[str, int]
    granted: int | None = None
    _held: dict[bytes, str] = attrs.field(factory=dict)
    _per_model: Counter[str] = attrs.field(factory=Counter)
    _emptied: trio.Event = attrs.field(factory=trio.Event)
    _doubted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def capacity(self) -> int:
        return sum(self.by_model.values())

    @property
    def held(self) -> int:
        return len(self._held)

    def free(self, model: str | None = None) -> int:
        """How many more jobs may be claimed: of one model, or of all."""
        limit = self.capacity if self.granted is None else min(self.capacity, self.granted)
        overall = max(0, limit - self.held)
        if model is None:
            return overall
        return max(0, min(overall, self.by_model.get(model, 0) - self._per_model[model]))

    def holds(self, job_id: bytes) -> bool:
        return job_id in self._held

    def held_of(self, model: str) -> int:
        return self._per_model[model]

    def take(self, model: str, job_id: bytes) -> Slot | None:
        """None when no slot is free, or when the job is held already."""
        return self.take_anyway(model, job_id) if self.free(model) else None

    def take_anyway(self, model: str, job_id: bytes) -> Slot | None:
        """For a job that is held on the chain whatever we count. None when it is held here already."""
        if job_id in self._held:
            return None
        self._held[job_id] = model
        self._per_model[model] += 1
        self.tell()
        return Slot(model, job_id, self)

    def take_back(self, slot: Slot, *, settled: bool) -> None:
        """Each end of a job moves the reputation, and the grant with it: a settle upwards, which matters while the
        grant is short of the slots, and any other end down. A claim that was refused may have met a smaller grant."""
        del self._held[slot.job_id]
        self._per_model[slot.model] -= 1
        self.tell()
        if not settled or self.granted is None or self.granted < self.capacity:
            self._doubted.set()
        if not self._held:
            self._emptied.set()
            self._emptied = trio.Event()

    def grant(self, capacity: int) -> None:
        self.granted = capacity
        metrics.capacity_granted.set(capacity)
        self.tell()

    def ask_for_grant(self) -> None:
        """The registry is about to be asked: what happens from now on may not be in its answer."""
        self._doubted = trio.Event()

    async def until_grant_may_differ(self) -> None:
        """From what the registry answered last."""
        await self._doubted.wait()

    def tell(self) -> None:
        metrics.capacity_free.set(self.free())

    async def until_empty(self) -> None:
        while self._held:
            await self._emptied.wait()


# Work of a backend: its input and its output.


@attrs.frozen(slots=True)
class ModelWork:
    """One job, opened and checked. `deadline` is in the event loop's clock (`trio.current_time()`): the moment by which
    the output must be there so that it can still be sealed, uploaded and settled within the SLA."""

    job_id: bytes
    model: str  # the market's name; the backend maps it to its own
    modality: Modality
    input: dict[str, object]
    units_in: int
    units_out: int
    deadline: float


@attrs.frozen(slots=True)
class WorkOutput:
    """`completion_tok` is what is charged: units produced, at most the order's `units_out`. `usage` is what the sealed
    result tells the client about it."""

    output: object
    completion_tok: int
    usage: dict[str, object] = attrs.field(factory=dict)


@attrs.define(slots=True, eq=False)
class Ahead:
    """A claim that is under way, of a job that is worked on already. `at_stake`: what the work would be paid with, in
    base units. `over` is called once: when the claim's end is known, or else the job's."""

    at_stake: int
    over: Callable[[], None]
    confirmed: bool = False
    _refusal: str | None = None
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def decided(self) -> bool:
        return self.confirmed or self._refusal is not None

    def confirm(self) -> None:
        if self.decided:
            return
        self.confirmed = True
        metrics.jobs_ahead.labels("claimed").inc()
        self.over()

    def refuse(self, why: str) -> None:
        """The claim came to nothing, and the work with it."""
        if self.decided:
            return
        self._refusal = why
        metrics.jobs_ahead.labels("unpaid").inc()
        metrics.unpaid_amount.inc(self.at_stake)
        self.over()
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Round work that ends as `WorkFailed` (`unpaid`) when the claim is refused."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._refusal is not None:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise WorkFailed(UNPAID, f"the claim was refused: {self._refusal}")


# A signed claim is good for 600 seconds, so one that is not on the chain after this never will be.
CLAIM_DEAD_AFTER: Final = 660.0


@attrs.frozen(slots=True, eq=False)
class ClaimedJob:
    """`sla_ends` is in the loop's time: the last moment at which the chain takes a settle. It moves when a
    reorganisation takes the claim: the one that comes then begins a window of its own."""

    job: Job
    model: str
    slot: Slot
    sla_ends: float
    recovered: bool = False  # found held at start, not claimed by this run
    ahead: Ahead | None = None  # of a job that is run before its claim is in a block

    @property
    def held(self) -> "ClaimedJob":
        """As on what the later stages make of it."""
        return self

    @property
    def claimed_at(self) -> float:
        """In the loop's time; a little before the chain's."""
        return self.sla_ends - self.job.sla_secs

    @property
    def claim_dies(self) -> float:
        """In the loop's time: a claim that is off the chain then, after a reorganisation, does not come back."""
        return self.claimed_at + CLAIM_DEAD_AFTER

    @property
    def was_claimed(self) -> bool:
        """Whether a claim of it is known to have been in a block, whatever became of that block."""
        return self.ahead is None or self.ahead.confirmed

    def in_window_of(self, claimed_at: float) -> "ClaimedJob":
        """With the window that a claim at that moment of the loop's time begins; a longer one is kept."""
        ends = claimed_at + self.job.sla_secs
        return self if ends <= self.sla_ends else attrs.evolve(self, sla_ends=ends)

    def work(self) -> AbstractContextManager[None]:
        """Round each step: it ends when there is nothing to be had for it any more."""
        return nullcontext() if self.ahead is None else self.ahead.work()

    @property
    def name(self) -> str:
        """As logs and routes write the job."""
        return "0x" + self.job.job_id.hex()


@attrs.frozen(slots=True, eq=False)
class Opened:
    held: ClaimedJob
    work: ModelWork
    result_key: PublicKey


@attrs.frozen(slots=True, eq=False)
class Finished:
    held: ClaimedJob
    output: WorkOutput
    result_key: PublicKey
    started: float


@attrs.frozen(slots=True, eq=False)
class SealedJob:
    """The sealed bytes are in the journal; small ones are here too. `result_cid`: where large ones were uploaded.

    `started` is None for a job whose run belongs to an earlier process.
    """

    held: ClaimedJob
    completion_tok: int
    length: int
    result: bytes | None = attrs.field(default=None, repr=False)
    result_cid: str | None = None
    started: float | None = None


@attrs.frozen(slots=True, eq=False)
class Failing:
    """To be failed on the chain; the journal has the reason."""

    held: ClaimedJob
    reason: str
