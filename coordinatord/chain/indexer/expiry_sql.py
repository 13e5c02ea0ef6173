"""Expired jobs: the table shows an open job past its `expires_at` as ended because of 5, as the registry reports it.

No event says so. The mark is a function of the row and of the indexed block's time, so it is not journaled. The code
that moves the position also sets the marks, in the same transaction. Anyone can let any number of jobs expire at one
moment, and an index that stops to mark them all would delay every reader. Therefore one transaction marks at most
AT_ONCE jobs, and further transactions between the following blocks mark the rest. Until then readers treat such a row
as marked (`book/jobs_sql.py`), and the job is leased to no provider.

A first backfill sets the marks at its end, together with the indexes, because no client reads before that.
"""

from typing import Final

from common.api.states import EndedBecause, JobState
from coordinatord.chain.indexer.events_sql import APPEND_MARKED
from coordinatord.storage.database.connections import Connection

AT_ONCE: Final = 4_000  # a quarter of a second, on a machine that is busy

_ALONE: Final = "select set_config('svc.journal_block', '', true), set_config('enable_seqscan', 'off', true)"
_MARK: Final = (
    f"with marked as (update jobs set state = {JobState.CANCELLED}, ended_because = {EndedBecause.EXPIRY}"
    " where ctid = any(array("
    f" select ctid from jobs where state = {JobState.OPEN} and expires_at < $1 order by expires_at limit $2))"
    f" returning job_id, owner, model_id, designated, expires_at) {APPEND_MARKED}"
)


async def mark_some_expired(connection: Connection, block_time: int) -> bool:
    """The position stands at, or moves forward to, a block of this time, which is kept already; whether there may be
    more to mark. Makes it the transaction's last change that could be journaled."""
    await connection.execute(_ALONE)
    done: str = await connection.execute(_MARK, block_time, AT_ONCE)
    return int(done.removeprefix("INSERT 0 ")) == AT_ONCE  # an event for each


async def mark_all_expired(connection: Connection, block_time: int) -> None:
    """Mark what expired before a block of this time, far below the head. Call it after changes that are journaled."""
    await connection.execute(_ALONE)
    # Without `jobs_due` a first backfill is under way: it marks when it builds the indexes.
    await connection.execute(
        f"update jobs set state = {JobState.CANCELLED}, ended_because = {EndedBecause.EXPIRY}"
        f" where to_regclass('jobs_due') is not null and state = {JobState.OPEN} and expires_at < $1",
        block_time,
    )


async def match_expired(connection: Connection, block_time: int) -> None:
    """The position moves back to a block of this time: some were not expired then, all of which can be claimed again;
    and rows that were put back may be from before their mark."""
    await connection.execute(_ALONE)
    await connection.execute(
        f"update jobs set state = {JobState.OPEN}, ended_because = {EndedBecause.NOT_ENDED}"
        f" where ended_because = {EndedBecause.EXPIRY} and expires_at >= $1",
        block_time,
    )
    await mark_some_expired(connection, block_time)
