"""Read and open the results of a batch's lines, from its output and error files."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import attrs
import msgspec

from common import quotes
from common.bundle import ItemResult, bundle_units, read_bundle_output
from common.pricing.units import Units
from common.quotes import CostParts, FeeTerms
from common.refusal import Refused
from common.strict_json import DECODE_ERRORS
from svc.core.bundles import read_job_sizes, split_cost
from svc.errors import ApiError, ConnectionFailed, JobFailed, ResultUnreadable, SvcError
from svc.files import Files
from svc.jobs import Jobs
from svc.records import Batch, ErrorLine, Job, LineError, OutputLine, Record
from svc.results import Result, Results, cost_parts_of, provider_cost

R = TypeVar("R", bound=Record)

_MAX_PARALLEL_READS: Final = 32
_MAX_LINE_NUMBER_DIGITS: Final = 9
_FAILURE_MESSAGES: Final = {
    "failed": "the provider could not run this line",
    "not_run": "the provider ran out of time before this line",
}


@attrs.frozen(slots=True)
class BatchResult:
    """Result or error of one line. `id` identifies the line, and `line` is the line's number in the batch.

    A `settled` line was completed and paid. A settled line whose result could not be read also has an `error`, with the
    code of ResultUnreadable. `cost` is the amount paid, or None if the amount is unknown.
    """

    id: str
    line: int
    job_id: str | None
    custom_id: str | None
    result: Result | None
    error: LineError | None
    settled: bool = False
    cost: CostParts | None = None


@attrs.frozen(slots=True)
class _JobLines:
    """Lines that share one job. Builds the results of these lines."""

    batch_id: str
    numbers: range
    custom_ids: Mapping[int, str]
    fee_terms: FeeTerms | None

    def build_result(self, number: int, job_id: str | None, **fields: object) -> BatchResult:
        values = {"custom_id": self.custom_ids.get(number), "result": None, "error": None, **fields}
        return BatchResult(f"batch_req_{self.batch_id}_{number}", number, job_id, **values)  # type: ignore[arg-type] # `values` has the other fields

    def build_failed_results(
        self, job_id: str | None, error: LineError, costs: Sequence[CostParts | None] = ()
    ) -> list[BatchResult]:
        """Return `error` as the result of every line. For a settled job, pass the costs of all lines."""
        shares = list(costs) or [None] * len(self.numbers)
        return [
            self.build_result(number, job_id, error=error, settled=bool(costs), cost=share)
            for number, share in zip(self.numbers, shares, strict=True)
        ]


class _LinesByJob:
    """Lines of each job, from the job sizes in the batch's metadata."""

    def __init__(self, batch: Batch, custom_ids: Mapping[int, str], fee_terms: FeeTerms | None) -> None:
        self._batch_id, self._custom_ids, self._fee_terms = batch.id, custom_ids, fee_terms
        try:
            sizes = read_job_sizes(batch.metadata)
        except Refused as refusal:
            raise ResultUnreadable(refusal.message, code="malformed_lines") from None
        self._ranges = None if sizes is None else list(_line_ranges(sizes))

    def lines_of(self, entry_id: str) -> _JobLines:
        """Return the lines of the job with this id in the output or error file. The id ends with the job's number."""
        digits = entry_id.rpartition("_")[2]
        number = int(digits) if digits.isdecimal() and len(digits) <= _MAX_LINE_NUMBER_DIGITS else 0
        numbers = range(number, number + 1)
        if not number or (self._ranges is not None and number > len(self._ranges)):
            raise ResultUnreadable(f"the batch has no job with the id {entry_id}", code="malformed_lines")
        if self._ranges is not None:
            numbers = self._ranges[number - 1]
        return _JobLines(self._batch_id, numbers, self._custom_ids, self._fee_terms)


def _line_ranges(sizes: Sequence[int]) -> Iterator[range]:
    first = 1
    for size in sizes:
        yield range(first, first + size)
        first += size


@attrs.frozen
class BatchResults:
    """Reads the results of batches."""

    files: Files
    jobs: Jobs
    results: Results

    async def read(
        self, batch: Batch, custom_ids: Mapping[int, str], fee_terms: FeeTerms | None
    ) -> AsyncIterator[BatchResult]:
        """Yield the result of every line. With `fee_terms`, compute the costs instead of using the reported costs."""
        lines_by_job = _LinesByJob(batch, custom_ids, fee_terms)
        if batch.output_file_id is not None:
            await self.results.account.result_keys()  # fail here if no key is set, not once for each line
            outputs = await self._read_file(batch.output_file_id, OutputLine)
            for at in range(0, len(outputs), _MAX_PARALLEL_READS):
                for results in await self._open_in_parallel(outputs[at : at + _MAX_PARALLEL_READS], lines_by_job):
                    for result in results:
                        yield result
        if batch.error_file_id is not None:
            for failed in await self._read_file(batch.error_file_id, ErrorLine):
                for result in lines_by_job.lines_of(failed.id).build_failed_results(failed.svc.job_id, failed.error):
                    yield result

    async def _open_in_parallel(self, outputs: list[OutputLine], lines_by_job: _LinesByJob) -> list[list[BatchResult]]:
        """Open the results in parallel, and return them in order."""
        found: dict[str, list[BatchResult]] = {}

        async def open_one(output: OutputLine, lines: _JobLines) -> None:
            found[output.id] = await self._open(output.svc.job_id, lines)

        numbered = [(output, lines_by_job.lines_of(output.id)) for output in outputs]
        async with anyio.create_task_group() as tasks:
            for output, lines in numbered:
                tasks.start_soon(open_one, output, lines)
        return [found[output.id] for output in outputs]

    async def _open(self, job_id: str, lines: _JobLines) -> list[BatchResult]:
        """Return the results of a settled job's lines."""
        costs: list[CostParts | None] = [None] * len(lines.numbers)
        try:
            job = await self.jobs.get(job_id)
            if lines.fee_terms is None:
                cost = cost_parts_of(job, self.results.account.last_fee_terms)
            else:
                cost = quotes.cost_parts(provider_cost(job), lines.fee_terms)
            if cost is not None:
                costs = list(split_cost(cost, [1] * len(costs)))
            result = await self.results.open(job)
            if len(lines.numbers) == 1:
                return [lines.build_result(lines.numbers[0], job_id, result=result, settled=True, cost=cost)]
            return self._open_bundle(result, lines, cost)
        except (ResultUnreadable, JobFailed, ApiError, ConnectionFailed) as failure:
            return lines.build_failed_results(job_id, LineError(_error_code(failure), failure.message), costs)

    def _open_bundle(self, result: Result, lines: _JobLines, cost: CostParts | None) -> list[BatchResult]:
        """Return the results of a bundle's lines. Raises ResultUnreadable if the bundle has other lines."""
        job = result.job
        try:
            items = read_bundle_output(result.output)
            self._check_charge(job, items)
        except Refused as refusal:
            raise ResultUnreadable(refusal.message, code=refusal.code, param=refusal.param) from None
        if len(items) != len(lines.numbers):
            message = f"the bundle of job {job.id} has {len(items)} results, expected {len(lines.numbers)}"
            raise ResultUnreadable(message, code="malformed_bundle")
        weights = [item.units_in * job.svc.rate_in + item.units_out * job.svc.rate_out for item in items]
        shares = [None] * len(items) if cost is None else split_cost(cost, _cost_weights(items, weights))
        found = []
        for number, item, share in zip(lines.numbers, items, shares, strict=True):
            expected = lines.custom_ids.get(number)
            if expected is not None and item.custom_id != expected:
                message = f"line {number} has custom_id {expected!r}, but its result has {item.custom_id!r}"
                raise ResultUnreadable(message, code="malformed_bundle")
            fields: dict[str, object] = {"custom_id": item.custom_id}
            if item.status == "completed":
                line_result = attrs.evolve(result, output=item.output, usage=item.usage, share=share)
                fields |= {"result": line_result, "settled": True, "cost": share}
            else:
                fields["error"] = LineError(item.error_code or item.status, _FAILURE_MESSAGES[item.status])
            found.append(lines.build_result(number, job.id, **fields))
        return found

    def _check_charge(self, job: Job, items: Sequence[ItemResult]) -> None:
        """Warn the user if the provider charged for more units than it delivered."""
        order, units = job.svc, [Units(item.units_in, item.units_out) for item in items]
        delivered = bundle_units(units, order.rate_in, order.rate_out)
        if order.completion_tok > delivered:
            self.results.account.market_verifier.report(
                f"provider {order.provider_id} charged {order.completion_tok} units for job {job.id}, but delivered"
                f" {delivered}: order from other providers"
            )

    async def _read_file(self, file_id: str, kind: type[R]) -> list[R]:
        """Read a whole file of the batch at once. A stream could time out while the results are opened."""
        content = await self.files.content(file_id)
        try:
            return [msgspec.json.decode(line, type=kind, strict=False) for line in content.splitlines() if line.strip()]
        except DECODE_ERRORS as error:
            raise ResultUnreadable(
                f"file {file_id} of the batch is malformed: {error}", code="malformed_lines"
            ) from None


def _cost_weights(items: Sequence[ItemResult], weights: Sequence[int]) -> list[int]:
    """Return the weights for sharing a bundle's cost. If all are 0, use equal weights for the completed items."""
    return list(weights) if any(weights) else [int(item.status == "completed") for item in items]


def _error_code(failure: SvcError) -> str:
    return failure.code or failure.type
