"""Moves batches, in every process: one step of one batch at a time, under a lock that dies with the process.

A step is a small transaction: the next stretch of the input file, a look at what was posted, or the files at the end.
Whatever kills it, the next worker finds the batch as the last commit left it.
"""

import time
from typing import Final

import attrs
import structlog

from coordinatord.store import batch_lines, batch_relays, batch_work, batches
from coordinatord.store.batch_work import Work
from coordinatord.store.database import Connection, Database
from coordinatord.store.notices import BATCH_DUE, Notices
from coordinatord.trouble import Retryable
from coordinatord.wake import Wake
from coordinatord.workers.expansion import NOT_POSTED, Expansion
from coordinatord.workers.finalising import Finalising

log = structlog.get_logger(__name__)

_IDLE: Final = 0.25  # seconds between looks for a batch that is due, at most
_QUEUE_FULL: Final = 0.02  # seconds until posts may be added again
# A look at a large batch reads all its lines: it may take a tenth of the time.
_LOOKS_APART: Final = 10.0
_LEAST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_BACK_OFF: Final = 30.0


@attrs.frozen(slots=True)
class BatchWorker:
    database: Database
    notices: Notices
    expansion: Expansion
    finalising: Finalising

    async def run(self) -> None:
        """Until cancelled."""
        due = Wake()
        async with self.notices.subscribe(BATCH_DUE, lambda _: due()):
            while True:
                try:
                    moved = await self.turn()
                except Retryable as trouble:
                    log.warning("no batch moved", reason=trouble.message)
                    moved = False
                if not moved:
                    await due.wait(await self._pause())

    async def _pause(self) -> float:
        """Seconds until a look is worth while."""
        try:
            async with self.database.connection() as connection:
                following = await batch_work.seconds_to_next(connection)
        except Retryable:
            return _IDLE
        return _IDLE if following is None else min(following, _IDLE)

    async def turn(self) -> bool:
        """Move one batch by one step; False when none was due."""
        work: Work | None = None
        try:
            async with self.database.connection() as connection, connection.transaction():
                work = await batch_work.take(connection)
                if work is not None:
                    await self._step(connection, work)
        except Retryable as trouble:
            if work is None:
                raise
            log.warning("batch put off", batch=work.batch_id, reason=trouble.message)
            await self._put_off(work)
        except Exception:
            if work is None:
                raise
            # A fault of ours that one batch brings out must not end every process, again and again.
            log.exception("batch put off by a fault", batch=work.batch_id)
            await self._put_off(work)
        return work is not None

    async def _put_off(self, work: Work) -> None:
        pause = min(0.25 * 2**work.attempts, _LONGEST_BACK_OFF)
        async with self.database.connection() as connection:
            await batch_work.pause(connection, work.batch_id, pause, attempts=work.attempts + 1)

    async def _step(self, connection: Connection, work: Work) -> None:
        if work.ends_as is not None:
            await self.finalising.step(connection, work)
            return
        if work.cancelling or work.expired:  # before the lines that are left: what waits would be posted meanwhile
            await batch_relays.withdraw(connection, work.batch_id)
        if work.expanded:
            await self._look(connection, work)
        elif await batch_relays.room(connection) > 0 or work.cancelling or work.expired:
            await self.expansion.step(connection, work)
        else:
            await batch_work.pause(connection, work.batch_id, _QUEUE_FULL)

    async def _look(self, connection: Connection, work: Work) -> None:
        """At what was posted: queue again what was dropped, take back what must not be posted, and settle the end."""
        started = time.monotonic()
        if work.cancelling or work.expired:
            code = "cancelled" if work.cancelling else "expired"
            await batch_lines.end_dropped(connection, work.batch_id, code, NOT_POSTED[code], late=code == "expired")
        else:
            await batch_relays.revive(connection, work.batch_id, max(await batch_relays.room(connection), 0))
        all_ended = await batch_lines.all_ended(connection, work.batch_id)
        too_late = work.expired and not await batch_lines.any_queued(connection, work.batch_id)
        if (all_ended or too_late) and await batch_lines.write_ends(connection, work.batch_id):
            await batches.settle_counts(connection, work.batch_id)
            await batch_work.pause(connection, work.batch_id, 0)
            return
        pause = min(max(_LOOKS_APART * (time.monotonic() - started), _LEAST_PAUSE), _LONGEST_PAUSE)
        await batch_work.pause(connection, work.batch_id, pause)
