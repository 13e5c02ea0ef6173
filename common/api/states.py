"""States of jobs and batches, with the job registry's numbers and the specification's names."""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

Numbered = TypeVar("Numbered", bound=enum.IntEnum)


def described_enum(about: str, example: int, numbers: Mapping[Numbered, str]) -> Meta:
    """Return the description of an enumerated number and of each value, for the OpenAPI document."""
    listed = "".join(f"\n- {number.value} {number.name}: {meaning}" for number, meaning in numbers.items())
    described: dict[str, Any] = {
        "enum": [number.value for number in numbers],
        "x-enum-varnames": [number.name for number in numbers],
        "x-enum-descriptions": list(numbers.values()),
    }
    return Meta(description=f"{about}:\n{listed}", examples=[example], extra_json_schema=described)


class JobState(enum.IntEnum):
    """State of a job, numbered as in the job registry."""

    OPEN = 0
    CLAIMED = 1
    SETTLED = 2
    CANCELLED = 3


class EndedBecause(enum.IntEnum):
    """The event that ended a job. A job that has not ended has `NOT_ENDED`."""

    NOT_ENDED = 0
    SETTLE = 1
    CANCEL = 2
    PROVIDER_FAIL = 3
    RECLAIM = 4
    EXPIRY = 5


JobStateNumber = Annotated[
    int,
    described_enum(
        "state of the job, by its number in the registry",
        JobState.SETTLED,
        {
            JobState.OPEN: "posted, and not claimed yet",
            JobState.CLAIMED: "a provider works on it; the registry has the payment",
            JobState.SETTLED: "the result is delivered and paid",
            JobState.CANCELLED: "ended without a result; `ended_because` has the reason",
        },
    ),
]
EndedBecauseNumber = Annotated[
    int,
    described_enum(
        "event that ended the job",
        EndedBecause.SETTLE,
        {
            EndedBecause.NOT_ENDED: "the job has not ended",
            EndedBecause.SETTLE: "the provider settled the job",
            EndedBecause.CANCEL: "the owner cancelled the open job",
            EndedBecause.PROVIDER_FAIL: "the provider failed the job; the owner was refunded",
            EndedBecause.RECLAIM: "the provider missed the window; the owner was refunded",
            EndedBecause.EXPIRY: "no provider claimed the job before `expires_at`",
        },
    ),
]

# Codes in batch error lines for jobs that ended without a settle.
LINE_CODE_BY_END: Final[dict[int, str]] = {
    EndedBecause.CANCEL: "cancelled",
    EndedBecause.PROVIDER_FAIL: "provider_fail",
    EndedBecause.RECLAIM: "reclaim",
    EndedBecause.EXPIRY: "expired",
}

JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
JOB_STATUS_DESCRIPTION: Final = (
    "the job as its client sees it: `queued` (open), `in_progress` (claimed), `completed` (settled), `failed` (failed"
    " by the provider, or reclaimed) or `cancelled` (cancelled, or expired)"
)
LIVE_JOB_STATUSES: Final = frozenset({"queued", "in_progress"})
ENDED_JOB_STATUSES: Final = frozenset({"completed", "failed", "cancelled"})

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
BATCH_STATUS_DESCRIPTION: Final = (
    "`validating` (no line was read yet), `in_progress`, `finalizing` (every line has ended) or `cancelling`; finally"
    " `completed` (even if every line failed), `failed` (unreadable input), `expired` or `cancelled`"
)
ENDED_BATCH_STATUSES: Final = frozenset({"completed", "failed", "expired", "cancelled"})

_STATUS_BY_STATE: Final[dict[int, JobStatus]] = {
    JobState.OPEN: "queued",
    JobState.CLAIMED: "in_progress",
    JobState.SETTLED: "completed",
}
_FAILED_REASONS: Final = frozenset({EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM})


def job_status(state: int, ended_because: int) -> JobStatus:
    """Return the status of a job. `failed` means failed by the provider or reclaimed.

    >>> job_status(JobState.CANCELLED, EndedBecause.EXPIRY)
    'cancelled'
    """
    return _STATUS_BY_STATE.get(state) or ("failed" if ended_because in _FAILED_REASONS else "cancelled")
