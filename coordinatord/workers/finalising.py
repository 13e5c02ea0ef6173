"""The files of a batch whose lines have all ended: streamed from their records to the store, then the batch is done."""

from collections.abc import AsyncIterator, Callable
from typing import Literal

import attrs
import structlog

from coordinatord.service.batch_output import error_line, output_file_id, output_line
from coordinatord.service.files import Files
from coordinatord.store import batch_lines, batches, files
from coordinatord.store.batch_lines import EndedLine
from coordinatord.store.batch_work import Work
from coordinatord.store.database import Connection

log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class Finalising:
    files: Files
    failed_seconds: int = 259_200  # that the files of a batch without a result are kept

    async def step(self, connection: Connection, work: Work) -> None:
        """Within the transaction that locks `work`. A file that an earlier attempt stored is stored again under the
        same id: what it says was written down before the first."""
        completed, failed = await batches.settled_counts(connection, work.batch_id)
        output = await self._file(connection, work, "output", completed, output_line)
        error = await self._file(connection, work, "error", failed, error_line)
        await batches.finish(connection, work.batch_id, output, error)
        if not completed:
            kept = [file_id for file_id in (work.input_file_id, error) if file_id is not None]
            await files.shorten(connection, kept, self.failed_seconds)
        log.info("batch finished", batch=work.batch_id, status=work.ends_as, completed=completed, failed=failed)

    async def _file(
        self,
        connection: Connection,
        work: Work,
        which: Literal["output", "error"],
        lines: int,
        write: Callable[[str, EndedLine], bytes],
    ) -> str | None:
        """Its id, or None when it would be empty."""
        if lines == 0:
            return None
        rows = batch_lines.ended_lines(connection, work.batch_id, completed=which == "output")
        file_id = output_file_id(work.batch_id, which)
        filename = f"{work.batch_id}_{which}.jsonl"
        row = await self.files.put_output(work.owner, filename, lines, _texts(work.batch_id, rows, write), file_id)
        return row.id


async def _texts(
    batch_id: str, rows: AsyncIterator[EndedLine], write: Callable[[str, EndedLine], bytes]
) -> AsyncIterator[bytes]:
    async for row in rows:
        yield write(batch_id, row)
