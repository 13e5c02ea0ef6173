"""States of jobs and batches: the registry's numbers, and the words that the specification has for them."""

import enum
from typing import Final, Literal


class JobState(enum.IntEnum):
    """As the job registry numbers them."""

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


# Why a job that is not settled has ended, as batch error lines name it.
ENDED_BECAUSE: Final[dict[int, str]] = {
    EndedBecause.CANCEL: "cancelled",
    EndedBecause.PROVIDER_FAIL: "provider_fail",
    EndedBecause.RECLAIM: "reclaim",
    EndedBecause.EXPIRY: "expired",
}

JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
ENDED_JOB: Final = frozenset({"completed", "failed", "cancelled"})

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
ENDED_BATCH: Final = frozenset({"completed", "failed", "expired", "cancelled"})

_STATUS: Final[dict[int, JobStatus]] = {
    JobState.OPEN: "queued",
    JobState.CLAIMED: "in_progress",
    JobState.SETTLED: "completed",
}
_FAILURES: Final = frozenset({EndedBecause.PROVIDER_FAIL, EndedBecause.RECLAIM})


def job_status(state: int, ended_because: int) -> JobStatus:
    """The status of a job: failed by its provider or reclaimed is a failure, every other end a cancellation.

    >>> job_status(JobState.CANCELLED, EndedBecause.EXPIRY)
    'cancelled'
    """
    return _STATUS.get(state) or ("failed" if ended_because in _FAILURES else "cancelled")
