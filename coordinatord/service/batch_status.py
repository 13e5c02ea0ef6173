"""What a batch's status is: from the marks on its row, and from its members where the row does not say yet."""

from typing import Literal

from coordinatord.store.batches import BatchRow

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]


def status_of(batch: BatchRow) -> Status:
    for status, at in (
        ("failed", batch.failed_at),
        ("completed", batch.completed_at),
        ("expired", batch.expired_at),
        ("cancelled", batch.cancelled_at),
        ("cancelling", batch.cancelling_at),
    ):
        if at is not None:
            return status  # type: ignore[return-value] # mypy sees a plain string
    if batch.finalizing_at is not None:
        return "finalizing"
    counts = batch.counts
    if counts.expanded and counts.completed + counts.failed == counts.total:
        return "finalizing"  # every line has ended; a worker is about to see it
    return "in_progress" if batch.in_progress_at is not None else "validating"


def is_cancellable(batch: BatchRow) -> bool:
    """One that was cancelled stays cancellable, to no effect, until it has ended."""
    return status_of(batch) in ("validating", "in_progress", "cancelling")
