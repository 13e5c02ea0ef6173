"""Batch workers: every process runs one step of one batch at a time, under a lock that ends with the process.

A step is a small transaction: it reads the next portion of the input file, checks posted lines, or writes the output
files. After a crash, another worker continues from the last commit.
"""

import time
from typing import Final

import attrs
import structlog

from coordinatord.api.batches import lines_sql, posts_sql, work_sql
from coordinatord.api.batches.expansion import NOT_POSTED, Expansion
from coordinatord.api.batches.output import Finalising
from coordinatord.api.batches.work_sql import BatchWork
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import BATCH_MOVED, Notices
from coordinatord.storage.database.transactions import transaction

POLL_S: Final = 0.25  # between looks for a batch that is due
QUEUE_FULL_PAUSE_S: Final = 0.02  # until posts may be added again
# A look at a large batch reads all its lines, so it may take a tenth of the time.
LOOK_PAUSE_FACTOR: Final = 10.0
MIN_LOOK_PAUSE_S: Final = 0.2
MAX_LOOK_PAUSE_S: Final = 5.0
MAX_BACKOFF_S: Final = 30.0

log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class BatchWorker:
    database: Database
    notices: Notices
    expansion: Expansion
    finalising: Finalising

    async def run(self) -> None:
        """Move batches until cancelled."""
        due = Wake()
        async with self.notices.subscribe(BATCH_MOVED, lambda _: due()):
            while True:
                try:
                    moved = await self.turn()
                except Retryable as error:
                    log.warning("batches not read", reason=error.message)
                    moved = False
                if not moved:
                    await due.wait(POLL_S)

    async def turn(self) -> bool:
        """Move one batch by one step. Return False when none was due."""
        work: BatchWork | None = None
        try:
            async with self.database.connection() as connection, transaction(connection):
                work = await work_sql.take(connection)
                if work is not None:
                    await self._step(connection, work)
        except Retryable as error:
            if work is None:
                raise
            log.warning("batch postponed", batch=work.batch_id, reason=error.message)
            await self._put_off(work)
        except Exception:
            if work is None:
                raise
            # A bug that one batch brings out must not end every process, again and again.
            log.exception("batch step failed", batch=work.batch_id)
            await self._put_off(work)
        return work is not None

    async def _put_off(self, work: BatchWork) -> None:
        pause = min(0.25 * 2**work.attempts, MAX_BACKOFF_S)
        async with self.database.connection() as connection:
            await work_sql.pause(connection, work.batch_id, pause, attempts=work.attempts + 1)

    async def _step(self, connection: Connection, work: BatchWork) -> None:
        if work.ends_as is not None:
            await self.finalising.step(connection, work)
            return
        if work.cancelling or work.expired:  # first, so that the relayer signs none of them now
            await posts_sql.withdraw(connection, work.batch_id)
        if work.expanded:
            await self._look(connection, work)
        elif await posts_sql.room(connection) > 0 or work.cancelling or work.expired:
            await self.expansion.step(connection, work)
        else:
            await work_sql.pause(connection, work.batch_id, QUEUE_FULL_PAUSE_S)

    async def _revive(self, connection: Connection, batch_id: str) -> None:
        owners = await posts_sql.dropped_of(connection, batch_id)
        if owners:
            allowances = await self.expansion.allowances.again(connection, owners)
            room = max(await posts_sql.room(connection), 0)
            await posts_sql.revive(connection, batch_id, room, allowances)

    async def _look(self, connection: Connection, work: BatchWork) -> None:
        """Check a batch to which no more lines will be added.

        Queue dropped posts again, or end their lines if the batch was cancelled or has expired. Store how each line
        ended once all lines have ended, or once the batch has expired and no post is queued.
        """
        started = time.monotonic()
        if work.cancelling or work.expired:
            code = "cancelled" if work.cancelling else "expired"
            await lines_sql.end_dropped(connection, work.batch_id, code, NOT_POSTED[code], late=code == "expired")
        else:
            await self._revive(connection, work.batch_id)
        all_ended = await lines_sql.all_ended(connection, work.batch_id)
        too_late = work.expired and not await lines_sql.any_queued(connection, work.batch_id)
        if (all_ended or too_late) and await lines_sql.write_ends(connection, work.batch_id):
            await work_sql.settle_counts(connection, work.batch_id)
            await work_sql.pause(connection, work.batch_id, 0)
            return
        pause = min(max(LOOK_PAUSE_FACTOR * (time.monotonic() - started), MIN_LOOK_PAUSE_S), MAX_LOOK_PAUSE_S)
        await work_sql.pause(connection, work.batch_id, pause)
