"""Moves batches, in every process: one step of one batch at a time, under a lock that dies with the process.

A step is a small transaction: the next portion of the input file, a look at what was posted, or the files at the end.
Whatever kills it, the next worker finds the batch as the last commit left it.
"""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import attrs
import msgspec
import structlog

from common.api.batches import ErrorDetails, ErrorLine, LineError, LineResponse, OutputDetails, OutputLine
from common.api.shapes import Digits, Shape, read_shape
from common.scalars import hex_of
from coordinatord.api.batches import batches_sql, lines_sql
from coordinatord.api.batches.batches_sql import BatchWork
from coordinatord.api.batches.expansion import NOT_POSTED, Expansion
from coordinatord.api.batches.lines_sql import EndedLine
from coordinatord.api.files import files_sql
from coordinatord.api.files.files import FileStore
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import BATCH_DUE, Notices
from coordinatord.storage.database.transactions import transaction

_WINDOW_ENDED: Final = "the batch's window ended before this line did"
_MESSAGES: Final = {
    "cancelled": "the owner cancelled the job",
    "provider_fail": "the provider failed the job",
    "reclaim": "the provider missed the job's window, and the payment went back",
    "expired": "nobody claimed the job in time",
    "SlaNotAllowed": "sla_secs must be one of `windows` of GET /evm/chain",
}


def output_file_id(batch_id: str, which: Literal["output", "error"]) -> str:
    return f"file-{hashlib.sha256(f'{batch_id} {which}'.encode()).hexdigest()[:24]}"


def output_line(batch_id: str, ended: EndedLine) -> bytes:
    """Of a line that settled. The result is sealed to its owner, hence no body."""
    if ended.job_id is None or ended.result is None:
        raise AssertionError(f"line {ended.line} of {batch_id} did not settle")
    job_id = hex_of(ended.job_id)
    details = read_shape(OutputDetails[Digits], {"job_id": job_id, **json.loads(ended.result)})
    return _text(OutputLine(_line_id(batch_id, ended), None, LineResponse(200, job_id, None), None, details))


def error_line(batch_id: str, ended: EndedLine) -> bytes:
    """Of a line that did not."""
    if ended.code is None:
        raise AssertionError(f"line {ended.line} of {batch_id} has not ended")
    message = ended.message or _MESSAGES.get(ended.code, f"the chain refuses: {ended.code}")
    if ended.late and ended.message is None:
        message = _WINDOW_ENDED
    job_id = hex_of(ended.job_id) if ended.job_id is not None else None
    details = ErrorDetails(job_id, ended.line)
    return _text(ErrorLine(_line_id(batch_id, ended), None, None, LineError(ended.code, message), details))


def _line_id(batch_id: str, ended: EndedLine) -> str:
    return f"batch_req_{batch_id}_{ended.line}"


def _text(line: Shape) -> bytes:
    return msgspec.json.encode(line) + b"\n"


log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class Finalising:
    """Writes the files of a batch whose lines have all ended: streamed from their records to the store. Then the batch
    is done. A file's id follows from the batch's: a finaliser that was killed writes the same files again, not others
    beside them."""

    files: FileStore
    failed_seconds: int = 259_200  # life of the error file of a batch without a result

    async def step(self, connection: Connection, work: BatchWork) -> None:
        """Within the transaction that locks `work`. A file that an earlier attempt stored is stored again under the
        same id: what it says was written down before the first."""
        completed, failed = await batches_sql.settled_counts(connection, work.batch_id)
        output = await self._file(connection, work, "output", completed, output_line)
        error = await self._file(connection, work, "error", failed, error_line)
        await batches_sql.finish(connection, work.batch_id, output, error)
        if error is not None and not completed:
            await files_sql.shorten(connection, error, self.failed_seconds)
        log.info("batch finished", batch=work.batch_id, status=work.ends_as, completed=completed, failed=failed)

    async def _file(
        self,
        connection: Connection,
        work: BatchWork,
        which: Literal["output", "error"],
        lines: int,
        write: Callable[[str, EndedLine], bytes],
    ) -> str | None:
        """Its id, or None when it would be empty."""
        if lines == 0:
            return None
        rows = lines_sql.ended_lines(connection, work.batch_id, completed=which == "output")
        file_id = output_file_id(work.batch_id, which)
        filename = f"{work.batch_id}_{which}.jsonl"
        row = await self.files.put_output(work.owner, filename, _texts(work.batch_id, rows, write), file_id)
        return row.id


async def _texts(
    batch_id: str, rows: AsyncIterator[EndedLine], write: Callable[[str, EndedLine], bytes]
) -> AsyncIterator[bytes]:
    async for row in rows:
        yield write(batch_id, row)


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
                except Retryable as error:
                    log.warning("no batch moved", reason=error.message)
                    moved = False
                if not moved:
                    await due.wait(await self._pause())

    async def _pause(self) -> float:
        """Seconds until a look is worth while."""
        try:
            async with self.database.connection() as connection:
                following = await batches_sql.seconds_to_next(connection)
        except Retryable:
            return _IDLE
        return _IDLE if following is None else min(following, _IDLE)

    async def turn(self) -> bool:
        """Move one batch by one step; False when none was due."""
        work: BatchWork | None = None
        try:
            async with self.database.connection() as connection, transaction(connection):
                work = await batches_sql.take(connection)
                if work is not None:
                    await self._step(connection, work)
        except Retryable as error:
            if work is None:
                raise
            log.warning("batch put off", batch=work.batch_id, reason=error.message)
            await self._put_off(work)
        except Exception:
            if work is None:
                raise
            # A fault of ours that one batch brings out must not end every process, again and again.
            log.exception("batch put off by a fault", batch=work.batch_id)
            await self._put_off(work)
        return work is not None

    async def _put_off(self, work: BatchWork) -> None:
        pause = min(0.25 * 2**work.attempts, _LONGEST_BACK_OFF)
        async with self.database.connection() as connection:
            await batches_sql.pause(connection, work.batch_id, pause, attempts=work.attempts + 1)

    async def _step(self, connection: Connection, work: BatchWork) -> None:
        if work.ends_as is not None:
            await self.finalising.step(connection, work)
            return
        if work.cancelling or work.expired:  # before the lines that are left: what waits would be posted meanwhile
            await lines_sql.withdraw(connection, work.batch_id)
        if work.expanded:
            await self._look(connection, work)
        elif await lines_sql.room(connection) > 0 or work.cancelling or work.expired:
            await self.expansion.step(connection, work)
        else:
            await batches_sql.pause(connection, work.batch_id, _QUEUE_FULL)

    async def _revive(self, connection: Connection, batch_id: str) -> None:
        owners = await lines_sql.dropped_of(connection, batch_id)
        if owners:
            allowances = await self.expansion.allowances.again(connection, owners)
            room = max(await lines_sql.room(connection), 0)
            await lines_sql.revive(connection, batch_id, room, allowances)

    async def _look(self, connection: Connection, work: BatchWork) -> None:
        """At what was posted: queue again what was dropped, take back what must not be posted, and settle the end."""
        started = time.monotonic()
        if work.cancelling or work.expired:
            code = "cancelled" if work.cancelling else "expired"
            await lines_sql.end_dropped(connection, work.batch_id, code, NOT_POSTED[code], late=code == "expired")
        else:
            await self._revive(connection, work.batch_id)
        all_ended = await lines_sql.all_ended(connection, work.batch_id)
        too_late = work.expired and not await lines_sql.any_queued(connection, work.batch_id)
        if (all_ended or too_late) and await lines_sql.write_ends(connection, work.batch_id):
            await batches_sql.settle_counts(connection, work.batch_id)
            await batches_sql.pause(connection, work.batch_id, 0)
            return
        pause = min(max(_LOOKS_APART * (time.monotonic() - started), _LEAST_PAUSE), _LONGEST_PAUSE)
        await batches_sql.pause(connection, work.batch_id, pause)
