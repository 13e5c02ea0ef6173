"""Batch workers. Each process runs one step of one batch at a time.

A step is a small transaction that locks the batch. It reads the next portion of the input file, checks posted lines, or
writes the output files. After a crash, another worker continues from the last commit.
"""

import time
from typing import Final

import attrs
import structlog

from coordinatord.api.batches import lines_sql, posts_sql, work_sql
from coordinatord.api.batches.expansion import NOT_POSTED_MESSAGES, BatchExpander
from coordinatord.api.batches.output import BatchFinaliser
from coordinatord.api.batches.work_sql import BatchWork
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import BATCH_MOVED, Notices
from coordinatord.storage.database.transactions import transaction

POLL_INTERVAL_S: Final = 0.25  # between two queries for a batch that is due
QUEUE_FULL_PAUSE_S: Final = 0.02  # before the next attempt to add posts
# Pause after a check, as a multiple of the check's duration, because a check reads all lines of the batch.
CHECK_PAUSE_FACTOR: Final = 10.0
MIN_CHECK_PAUSE_S: Final = 0.2
MAX_CHECK_PAUSE_S: Final = 5.0
MAX_BACKOFF_S: Final = 30.0

log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class BatchWorker:
    database: Database
    notices: Notices
    expander: BatchExpander
    finaliser: BatchFinaliser

    async def run(self) -> None:
        """Process batches until cancelled."""
        due = Wake()
        async with self.notices.subscribe(BATCH_MOVED, lambda _: due()):
            while True:
                try:
                    moved = await self.run_step()
                except Retryable as error:
                    log.warning("batches not read", reason=error.message)
                    moved = False
                if not moved:
                    await due.wait(POLL_INTERVAL_S)

    async def run_step(self) -> bool:
        """Run one step of one batch. Return False if no batch was due."""
        work: BatchWork | None = None
        try:
            async with self.database.connection() as connection, transaction(connection):
                work = await work_sql.lock_next_batch(connection)
                if work is not None:
                    await self._advance_batch(connection, work)
        except Retryable as error:
            if work is None:
                raise
            log.warning("batch postponed", batch=work.batch_id, reason=error.message)
            await self._postpone_batch(work)
        except Exception:
            if work is None:
                raise
            # Catch a bug that one batch triggers. Otherwise, it would end each process that takes the batch.
            log.exception("batch step failed", batch=work.batch_id)
            await self._postpone_batch(work)
        return work is not None

    async def _postpone_batch(self, work: BatchWork) -> None:
        pause = min(0.25 * 2**work.attempts, MAX_BACKOFF_S)
        async with self.database.connection() as connection:
            await work_sql.pause_batch(connection, work.batch_id, pause, attempts=work.attempts + 1)

    async def _advance_batch(self, connection: Connection, work: BatchWork) -> None:
        if work.ends_as is not None:
            await self.finaliser.finalise(connection, work)
            return
        if work.cancelling or work.expired:  # before anything else, so that the relayer does not sign these posts
            await posts_sql.withdraw_queued_posts(connection, work.batch_id)
        if work.expanded:
            await self._check_expanded(connection, work)
        elif await posts_sql.count_queue_room(connection) > 0 or work.cancelling or work.expired:
            await self.expander.expand_next_lines(connection, work)
        else:
            await work_sql.pause_batch(connection, work.batch_id, QUEUE_FULL_PAUSE_S)

    async def _requeue_dropped_posts(self, connection: Connection, batch_id: str) -> None:
        owners = await posts_sql.read_owners_of_dropped_posts(connection, batch_id)
        if owners:
            allowances = await self.expander.allowances.read_requeue_allowances(connection, owners)
            room = max(await posts_sql.count_queue_room(connection), 0)
            await posts_sql.requeue_dropped_posts(connection, batch_id, room, allowances)

    async def _check_expanded(self, connection: Connection, work: BatchWork) -> None:
        """Check a batch to which no more lines will be added.

        Queue dropped posts again, or end their lines if the batch was cancelled or has expired. Store the outcome of
        each line once all lines have ended, or once the batch has expired and no post is queued.
        """
        started = time.monotonic()
        if work.cancelling or work.expired:
            code = "cancelled" if work.cancelling else "expired"
            await lines_sql.end_dropped_lines(
                connection, work.batch_id, code, NOT_POSTED_MESSAGES[code], late=code == "expired"
            )
        else:
            await self._requeue_dropped_posts(connection, work.batch_id)
        all_ended = await lines_sql.all_lines_ended(connection, work.batch_id)
        too_late = work.expired and not await lines_sql.any_post_queued(connection, work.batch_id)
        if (all_ended or too_late) and await lines_sql.store_outcomes(connection, work.batch_id):
            await work_sql.store_final_counts(connection, work.batch_id)
            await work_sql.pause_batch(connection, work.batch_id, 0)
            return
        pause = min(max(CHECK_PAUSE_FACTOR * (time.monotonic() - started), MIN_CHECK_PAUSE_S), MAX_CHECK_PAUSE_S)
        await work_sql.pause_batch(connection, work.batch_id, pause)
