"""Job events, as event streams and webhooks send them.

An event is only a notification. A client must read and verify the job before it acts.
"""

import enum
from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from common.api.shapes import Address, Bytes32, Digits, N, Shape, described
from common.api.states import (
    JOB_STATUS,
    EndedBecause,
    EndedBecauseNumber,
    JobState,
    JobStateNumber,
    JobStatus,
)


class EventKind(enum.IntEnum):
    """Kinds of events, with the numbers of the coordinator's table. The API uses the names in lower case."""

    POSTED = 0
    CLAIMED = 1
    SETTLED = 2
    CANCELLED = 3
    FAILED = 4
    RECLAIMED = 5
    EXPIRED = 6
    RESET = 7


JobEventName = Literal["posted", "claimed", "settled", "cancelled", "failed", "reclaimed", "expired"]
JOB_EVENTS: Final[dict[EventKind, JobEventName]] = {
    EventKind.POSTED: "posted",
    EventKind.CLAIMED: "claimed",
    EventKind.SETTLED: "settled",
    EventKind.CANCELLED: "cancelled",
    EventKind.FAILED: "failed",
    EventKind.RECLAIMED: "reclaimed",
    EventKind.EXPIRED: "expired",
}
# State and `ended_because` of a job after each event.
OUTCOMES: Final[dict[EventKind, tuple[JobState, EndedBecause]]] = {
    EventKind.POSTED: (JobState.OPEN, EndedBecause.NOT_ENDED),
    EventKind.CLAIMED: (JobState.CLAIMED, EndedBecause.NOT_ENDED),
    EventKind.SETTLED: (JobState.SETTLED, EndedBecause.SETTLE),
    EventKind.CANCELLED: (JobState.CANCELLED, EndedBecause.CANCEL),
    EventKind.FAILED: (JobState.CANCELLED, EndedBecause.PROVIDER_FAIL),
    EventKind.RECLAIMED: (JobState.CANCELLED, EndedBecause.RECLAIM),
    EventKind.EXPIRED: (JobState.CANCELLED, EndedBecause.EXPIRY),
}

EventId = Annotated[Digits, described("id of the event: send it as `Last-Event-ID` to go on after it", "123")]
_TAKEN_BACK = described(
    "null, or the id of the event that a reorganisation undid: the other members are then those of that event, which"
    " is not true any more",
    None,
)


class JobEventFields(Shape, Generic[N], frozen=True):
    id: EventId
    event: Annotated[JobEventName, described("what happened to the job", "claimed")]
    taken_back: Annotated[Digits | None, _TAKEN_BACK]
    job_id: Bytes32
    owner: Address
    model_id: N
    provider_id: N
    designated: N
    state: Annotated[JobStateNumber, Meta(examples=[JobState.CLAIMED])]
    ended_because: Annotated[EndedBecauseNumber, Meta(examples=[EndedBecause.NOT_ENDED])]
    status: Annotated[JobStatus, described(JOB_STATUS, "in_progress")]
    block_number: Annotated[N, described("block in which it happened", "43")]
    block_time: Annotated[N, described("time of that block, in Unix seconds", "1800000030")]


class JobEvent(JobEventFields[Digits], frozen=True):
    """Something that happened to a job, or that a reorganisation took back."""


class EventsReset(Shape, frozen=True):
    """A gap in the events: read again what you follow."""

    id: EventId
    event: Annotated[Literal["reset"], described("that there are events which were not sent", "reset")]
