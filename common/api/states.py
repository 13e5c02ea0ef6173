"""States of jobs and batches: the registry's numbers and the specification's names."""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

Numbered = TypeVar("Numbered", bound=enum.IntEnum)


def meanings(about: str, example: int, numbers: Mapping[Numbered, str]) -> Meta:
    """Describe an enumerated number and each of its values, for the OpenAPI document."""
    listed = "".join(f"\n- {number.value} {number.name}: {meaning}" for number, meaning in numbers.items())
    described: dict[str, Any] = {
        "enum": [number.value for number in numbers],
        "x-enum-varnames": [number.name for number in numbers],
        "x-enum-descriptions": list(numbers.values()),
    }
    return Meta(description=f"{about}:\n{listed}", examples=[example], extra_json_schema=described)


class JobState(enum.IntEnum):
    """States with the job registry's numbers."""

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
    meanings(
        "state of the job, as the registry numbers it",
        JobState.SETTLED,
        {
            JobState.OPEN: "posted, and not claimed yet",
            JobState.CLAIMED: "a provider works on it; its payment is in the registry",
            JobState.SETTLED: "the result is there, and paid for",
            JobState.CANCELLED: "ended without a result: `ended_because` says how",
        },
    ),
]
EndedBecauseNumber = Annotated[
    int,
    meanings(
        "event that ended the job",
        EndedBecause.SETTLE,
        {
            EndedBecause.NOT_ENDED: "it has not ended",
            EndedBecause.SETTLE: "the provider settled it",
            EndedBecause.CANCEL: "its owner cancelled it while it was open",
            EndedBecause.PROVIDER_FAIL: "the provider failed it; the payment went back",
            EndedBecause.RECLAIM: "the provider missed the window; the payment went back",
            EndedBecause.EXPIRY: "no provider claimed it before `expires_at`",
        },
    ),
]

# Codes in batch error lines for jobs that ended without a settle.
ENDED_BECAUSE: Final[dict[int, str]] = {
    EndedBecause.CANCEL: "cancelled",
    EndedBecause.PROVIDER_FAIL: "provider_fail",
    EndedBecause.RECLAIM: "reclaim",
    EndedBecause.EXPIRY: "expired",
}

JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
JOB_STATUS: Final = (
    "the job as its client sees it: `queued` (open), `in_progress` (claimed), `completed` (settled), `failed` (failed"
    " by the provider, or reclaimed) or `cancelled` (cancelled, or expired)"
)
LIVE_JOB: Final = frozenset({"queued", "in_progress"})
ENDED_JOB: Final = frozenset({"completed", "failed", "cancelled"})

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
BATCH_STATUS: Final = (
    "`validating` (no line was looked at yet), `in_progress`, `finalizing` (every line has ended), `cancelling`; and in"
    " the end `completed` (even where every line failed), `failed` (unreadable input), `expired` or `cancelled`"
)
ENDED_BATCH: Final = frozenset({"completed", "failed", "expired", "cancelled"})

_STATUS: Final[dict[int, JobStatus]] = {
    JobState.OPEN: "queued",
    JobState.CLAIMED: "in_progress",
    JobState.SETTLED: "completed",
}
_FAILURES: Final = frozenset({EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM})


def job_status(state: int, ended_because: int) -> JobStatus:
    """Return the status of a job. `failed` means failed by the provider or reclaimed.

    >>> job_status(JobState.CANCELLED, EndedBecause.EXPIRY)
    'cancelled'
    """
    return _STATUS.get(state) or ("failed" if ended_because in _FAILURES else "cancelled")
