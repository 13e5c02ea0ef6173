"""A job in hand, and what each stage adds to it on its way to the next."""

from typing import Final

import attrs

from common.box import PublicKey
from common.pricing.assets import Modality
from svcd.job.row import Job
from svcd.job.slots import Slot

# What a backend is given and what it gives back.


@attrs.frozen(slots=True)
class Work:
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
class Output:
    """`completion_tok` is what is charged: units produced, at most the order's `units_out`. `usage` is what the sealed
    result tells the client about it."""

    output: object
    completion_tok: int
    usage: dict[str, object] = attrs.field(factory=dict)


# A signed claim is good for 600 seconds, so one that is not on the chain after this never will be.
CLAIM_DEAD_AFTER: Final = 660.0


@attrs.frozen(slots=True, eq=False)
class Held:
    """`sla_ends` is in the loop's time: the last moment at which the chain takes a settle."""

    job: Job
    model: str
    slot: Slot
    sla_ends: float
    recovered: bool = False  # found held at start, not claimed by this run

    @property
    def held(self) -> "Held":
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
    def name(self) -> str:
        """As logs and routes write the job."""
        return "0x" + self.job.job_id.hex()


@attrs.frozen(slots=True, eq=False)
class Opened:
    held: Held
    work: Work
    result_key: PublicKey


@attrs.frozen(slots=True, eq=False)
class Finished:
    held: Held
    output: Output
    result_key: PublicKey
    started: float


@attrs.frozen(slots=True, eq=False)
class Sealed:
    """The sealed bytes are in the journal; small ones are here too. `result_cid`: where large ones were uploaded.

    `started` is None for a job whose run belongs to an earlier process.
    """

    held: Held
    completion_tok: int
    length: int
    result: bytes | None = attrs.field(default=None, repr=False)
    result_cid: str | None = None
    started: float | None = None


@attrs.frozen(slots=True, eq=False)
class Failing:
    """To be failed on the chain; the journal has the reason."""

    held: Held
    reason: str
