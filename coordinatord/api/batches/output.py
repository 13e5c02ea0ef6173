"""Output file and error file of a batch, and the end of the batch."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import attrs
import msgspec
import structlog

from common.api.batches import ErrorDetails, ErrorLine, LineError, LineResponse, OutputDetails, OutputLine
from common.api.shapes import Digits, Shape, read_shape
from common.scalars import hex_of
from coordinatord.api.batches import lines_sql, work_sql
from coordinatord.api.batches.lines_sql import EndedLine
from coordinatord.api.batches.work_sql import BatchWork
from coordinatord.api.files import files_sql
from coordinatord.api.files.files import FileStore
from coordinatord.storage.database.connections import Connection

_WINDOW_ENDED_MESSAGE: Final = "the batch's window ended before this line ended"
_MESSAGES_BY_CODE: Final = {
    "cancelled": "the owner cancelled the job",
    "provider_fail": "the provider failed the job",
    "reclaim": "the provider missed the job's window, and the owner got the payment back",
    "expired": "no provider claimed the job in time",
    "SlaNotAllowed": "sla_secs must be one of `windows` of GET /evm/chain",
}

log = structlog.get_logger(__name__)


def output_file_id(batch_id: str, kind: Literal["output", "error"]) -> str:
    """Return the id of the output file or error file of a batch."""
    return f"file-{hashlib.sha256(f'{batch_id} {kind}'.encode()).hexdigest()[:24]}"


def output_line(batch_id: str, ended: EndedLine) -> bytes:
    """Return the output line of a settled job. It has no body, because the result is sealed to the owner."""
    if ended.job_id is None or ended.result is None:
        raise AssertionError(f"line {ended.line} of {batch_id} did not settle")
    job_id = hex_of(ended.job_id)
    details = read_shape(OutputDetails[Digits], {"job_id": job_id, **json.loads(ended.result)})
    return _encode_line(OutputLine(_line_id(batch_id, ended), None, LineResponse(200, job_id, None), None, details))


def error_line(batch_id: str, ended: EndedLine) -> bytes:
    """Return the error line of a job that did not settle."""
    if ended.code is None:
        raise AssertionError(f"line {ended.line} of {batch_id} has not ended")
    message = ended.message or _MESSAGES_BY_CODE.get(ended.code, f"the chain refused the job: {ended.code}")
    if ended.late and ended.message is None:
        message = _WINDOW_ENDED_MESSAGE
    job_id = hex_of(ended.job_id) if ended.job_id is not None else None
    details = ErrorDetails(job_id, ended.line)
    return _encode_line(ErrorLine(_line_id(batch_id, ended), None, None, LineError(ended.code, message), details))


def _line_id(batch_id: str, ended: EndedLine) -> str:
    return f"batch_req_{batch_id}_{ended.line}"


def _encode_line(line: Shape) -> bytes:
    return msgspec.json.encode(line) + b"\n"


@attrs.frozen(slots=True)
class BatchFinaliser:
    """Writes the output files of a batch after all its lines have ended, and ends the batch.

    Each file's id is derived from the batch's id, so a run after a crash overwrites the same files."""

    files: FileStore
    failed_retention_s: int = 259_200  # retention of the error file of a batch in which no line completed

    async def finalise(self, connection: Connection, work: BatchWork) -> None:
        """Store both files and end the batch, in the transaction that locks `work`."""
        completed, failed = work.completed or 0, work.failed or 0
        output = await self._store_file(connection, work, "output", completed, output_line)
        error = await self._store_file(connection, work, "error", failed, error_line)
        await work_sql.finish_batch(connection, work.batch_id, output, error)
        if error is not None and not completed:
            await files_sql.shorten_lifetime(connection, error, self.failed_retention_s)
        log.info("batch finished", batch=work.batch_id, status=work.ends_as, completed=completed, failed=failed)

    async def _store_file(
        self,
        connection: Connection,
        work: BatchWork,
        kind: Literal["output", "error"],
        lines: int,
        encode: Callable[[str, EndedLine], bytes],
    ) -> str | None:
        """Store a file. Return its id, or None when it would be empty."""
        if lines == 0:
            return None
        rows = lines_sql.read_ended_lines(connection, work.batch_id, completed=kind == "output")
        file_id = output_file_id(work.batch_id, kind)
        filename = f"{work.batch_id}_{kind}.jsonl"
        row = await self.files.put_output(work.owner, filename, _encode_lines(work.batch_id, rows, encode), file_id)
        return row.id


async def _encode_lines(
    batch_id: str, rows: AsyncIterator[EndedLine], encode: Callable[[str, EndedLine], bytes]
) -> AsyncIterator[bytes]:
    async for row in rows:
        yield encode(batch_id, row)
