"""Results of a batch's lines, from its output and error files, each result opened."""

from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import anyio
import attrs
import msgspec

from common.strict_json import UNREADABLE
from svc.errors import ApiError, ConnectionFailed, JobFailed, ResultUnreadable, SvcError
from svc.files import Files
from svc.jobs import Jobs
from svc.records import Batch, ErrorLine, LineError, OutputLine, Record
from svc.results import Result, Results

R = TypeVar("R", bound=Record)

_PARALLEL_READS: Final = 32


@attrs.frozen(slots=True)
class BatchResult:
    """Result of one line, or its `error`. `id` is the line's id in the batch.

    A `settled` line was completed and paid. If its result could not be read, it also has an error, with the code of
    ResultUnreadable.
    """

    id: str
    job_id: str | None
    custom_id: str | None
    result: Result | None
    error: LineError | None
    settled: bool = False


@attrs.frozen
class BatchResults:
    """Reads the results of batches."""

    files: Files
    jobs: Jobs
    results: Results

    async def read(self, batch: Batch, custom_ids: Mapping[str, str]) -> AsyncIterator[BatchResult]:
        if batch.output_file_id is not None:
            await self.results.account.result_keys()  # a missing key is an error of the call, not of each line
            lines = await self._lines(batch.output_file_id, OutputLine)
            for at in range(0, len(lines), _PARALLEL_READS):
                for result in await self._open_together(lines[at : at + _PARALLEL_READS], custom_ids):
                    yield result
        if batch.error_file_id is not None:
            for failed in await self._lines(batch.error_file_id, ErrorLine):
                job_id = failed.svc.job_id
                custom_id = custom_ids.get(job_id) if job_id is not None else None
                yield BatchResult(failed.id, job_id, custom_id, None, failed.error)

    async def _open_together(self, lines: list[OutputLine], custom_ids: Mapping[str, str]) -> list[BatchResult]:
        """Open the results in parallel, and return them in order."""
        found: dict[str, BatchResult] = {}

        async def one(line: OutputLine) -> None:
            found[line.id] = await self._open(line, custom_ids)

        async with anyio.create_task_group() as tasks:
            for line in lines:
                tasks.start_soon(one, line)
        return [found[line.id] for line in lines]

    async def _open(self, line: OutputLine, custom_ids: Mapping[str, str]) -> BatchResult:
        job_id = line.svc.job_id
        result: Result | None = None
        error: LineError | None = None
        try:
            result = await self.results.open(await self.jobs.get(job_id))
        except (ResultUnreadable, JobFailed, ApiError, ConnectionFailed) as failure:
            error = LineError(_error_code(failure), failure.message)
        return BatchResult(line.id, job_id, custom_ids.get(job_id), result, error, settled=True)

    async def _lines(self, file_id: str, kind: type[R]) -> list[R]:
        """Read a file of the batch.

        It is read at once, because a connection would not stay open while results are opened.
        """
        content = await self.files.content(file_id)
        try:
            return [msgspec.json.decode(line, type=kind, strict=False) for line in content.splitlines() if line.strip()]
        except UNREADABLE as error:
            raise ResultUnreadable(f"{file_id} has invalid batch lines: {error}", code="malformed_lines") from None


def _error_code(failure: SvcError) -> str:
    return failure.code or failure.type
