"""Job events, as event streams and webhooks send them.

An event is only a notification. A client must read and verify the job before it acts.
"""

import enum
from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from common.api.shapes import Address, Bytes32, Digits, N, Shape, described
from common.api.states import (
    JOB_STATUS_DESCRIPTION,
    EndedBecause,
    EndedBecauseNumber,
    JobState,
    JobStateNumber,
    JobStatus,
)


class EventKind(enum.IntEnum):
    """Kinds of events, numbered as in the coordinator's database table. The API uses the names in lower case."""

    POSTED = 0
    CLAIMED = 1
    SETTLED = 2
    CANCELLED = 3
    FAILED = 4
    RECLAIMED = 5
    EXPIRED = 6
    RESET = 7


JobEventName = Literal["posted", "claimed", "settled", "cancelled", "failed", "reclaimed", "expired"]
JOB_EVENT_NAMES: Final[dict[EventKind, JobEventName]] = {
    EventKind.POSTED: "posted",
    EventKind.CLAIMED: "claimed",
    EventKind.SETTLED: "settled",
    EventKind.CANCELLED: "cancelled",
    EventKind.FAILED: "failed",
    EventKind.RECLAIMED: "reclaimed",
    EventKind.EXPIRED: "expired",
}
# State and `ended_because` of a job after each event.
OUTCOME_BY_EVENT: Final[dict[EventKind, tuple[JobState, EndedBecause]]] = {
    EventKind.POSTED: (JobState.OPEN, EndedBecause.NOT_ENDED),
    EventKind.CLAIMED: (JobState.CLAIMED, EndedBecause.NOT_ENDED),
    EventKind.SETTLED: (JobState.SETTLED, EndedBecause.SETTLE),
    EventKind.CANCELLED: (JobState.CANCELLED, EndedBecause.CANCEL),
    EventKind.FAILED: (JobState.CANCELLED, EndedBecause.PROVIDER_FAIL),
    EventKind.RECLAIMED: (JobState.CANCELLED, EndedBecause.RECLAIM),
    EventKind.EXPIRED: (JobState.CANCELLED, EndedBecause.EXPIRY),
}

EventId = Annotated[Digits, described("id of the event: send it as `Last-Event-ID` to resume after this event", "123")]
_TAKEN_BACK_META = described(
    "null, or the id of an earlier event that a reorganisation undid; the other members then repeat that event, which"
    " no longer holds",
    None,
)


class JobEventFields(Shape, Generic[N], frozen=True):
    id: EventId
    event: Annotated[JobEventName, described("what happened to the job", "claimed")]
    taken_back: Annotated[Digits | None, _TAKEN_BACK_META]
    job_id: Bytes32
    owner: Address
    model_id: N
    provider_id: N
    designated: N
    state: Annotated[JobStateNumber, Meta(examples=[JobState.CLAIMED])]
    ended_because: Annotated[EndedBecauseNumber, Meta(examples=[EndedBecause.NOT_ENDED])]
    status: Annotated[JobStatus, described(JOB_STATUS_DESCRIPTION, "in_progress")]
    block_number: Annotated[N, described("block of the event", "43")]
    block_time: Annotated[N, described("time of that block, in Unix seconds", "1800000030")]


class JobEvent(JobEventFields[Digits], frozen=True):
    """A change of a job's state, or the removal of an earlier change by a reorganisation."""


class EventsReset(Shape, frozen=True):
    """Notice that events were lost. Read the state of the followed jobs again."""

    id: EventId
    event: Annotated[Literal["reset"], described("`reset`: some events were not sent", "reset")]
