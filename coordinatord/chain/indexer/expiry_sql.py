"""Mark expired jobs: an open job past its `expires_at` is stored as cancelled by expiry, although the registry reports
it as open.

No chain event announces an expiry. The mark can be derived from the row and the time of the indexed block, so it is not
journaled. The code that moves the position also sets the marks, in the same transaction. Any number of jobs can expire
at one moment, and marking all of them at once would delay every reader. So one transaction marks at most
MAX_MARKED_JOBS jobs, and further transactions between the following blocks mark the rest. Until then readers treat such
a row as marked (`book/jobs_sql.py`), and the job is leased to no provider.

A first backfill sets the marks at its end, together with the indexes, because no client reads before that.
"""

from typing import Final

from common.api.states import EndedBecause, JobState
from coordinatord.chain.indexer.events_sql import APPEND_EXPIRY_EVENTS
from coordinatord.storage.database.connections import Connection

# Jobs marked in one transaction. Takes about 0.25 s on a busy machine.
MAX_MARKED_JOBS: Final = 4_000

_TRANSACTION_SETTINGS: Final = (
    "select set_config('svc.journal_block', '', true), set_config('enable_seqscan', 'off', true)"
)
_MARK_EXPIRED_BATCH: Final = (
    f"with marked as (update jobs set state = {JobState.CANCELLED}, ended_because = {EndedBecause.EXPIRY}"
    " where ctid = any(array("
    f" select ctid from jobs where state = {JobState.OPEN} and expires_at < $1 order by expires_at limit $2))"
    f" returning job_id, owner, model_id, designated, expires_at) {APPEND_EXPIRY_EVENTS}"
)


async def mark_expired_batch(connection: Connection, block_time: int) -> bool:
    """Mark jobs that expired before `block_time`, the time of the position's block. Return True if more may remain.

    The block must be stored already. Call this after all changes that must be journaled, because it turns the journal
    off for the rest of the transaction.
    """
    await connection.execute(_TRANSACTION_SETTINGS)
    command_tag: str = await connection.execute(_MARK_EXPIRED_BATCH, block_time, MAX_MARKED_JOBS)
    # The statement inserts one event per marked job.
    return int(command_tag.removeprefix("INSERT 0 ")) == MAX_MARKED_JOBS


async def mark_all_expired_jobs(connection: Connection, block_time: int) -> None:
    """Mark all jobs that expired before `block_time`, without a limit. This is only for blocks far below the head. Call
    this after all changes that must be journaled, because it turns the journal off for the rest of the transaction."""
    await connection.execute(_TRANSACTION_SETTINGS)
    # During a first backfill, the index `jobs_due` does not exist and no job is marked here. The backfill marks expired
    # jobs when it builds the indexes.
    await connection.execute(
        f"update jobs set state = {JobState.CANCELLED}, ended_because = {EndedBecause.EXPIRY}"
        f" where to_regclass('jobs_due') is not null and state = {JobState.OPEN} and expires_at < $1",
        block_time,
    )


async def update_expiry_marks(connection: Connection, block_time: int) -> None:
    """Set and remove marks after the position moved back to a block with this time.

    Reopen jobs that had not expired at that time, and mark expired jobs whose restored rows carry no mark.
    """
    await connection.execute(_TRANSACTION_SETTINGS)
    await connection.execute(
        f"update jobs set state = {JobState.OPEN}, ended_because = {EndedBecause.NOT_ENDED}"
        f" where ended_because = {EndedBecause.EXPIRY} and expires_at >= $1",
        block_time,
    )
    await mark_expired_batch(connection, block_time)
