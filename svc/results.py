"""Read results from a gateway, open them, and check them against their job."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
from anyio import to_thread

from common import quotes
from common.envelope import ResultBody
from common.quotes import CostParts, FeeTerms
from common.refusal import Refused
from common.scalars import read_hex
from svc.account import Account
from svc.core.answers import read_answer
from svc.core.sealing import ResultReader, parse_result_body
from svc.error_conversion import raises_svc_errors
from svc.errors import JobFailed, OrderRefused, ResultUnreadable
from svc.protected_files import open_atomic
from svc.records import CODE_BY_ENDED_BECAUSE, Job, RestsOn

_MAX_INLINE_PARSE_BYTES: Final = 1 << 15  # larger bodies are parsed in a thread


@attrs.frozen(slots=True)
class Result:
    """Output of the model. `usage` is the provider's count, and `job` has the charged units.

    `provisional` is True if the chain had not settled this result yet. Then `rests_on` is the stage that the settle had
    reached, `job` is the expected end of the job, and `settled` waits for the chain.
    """

    job: Job
    output: Any
    usage: dict[str, object]
    rests_on: RestsOn = "block"
    provisional: bool = False
    fee_terms: FeeTerms | None = attrs.field(default=None, repr=False, eq=False)
    share: CostParts | None = None  # share of a line in the cost of its bundle
    confirm: "Callable[[Result, float | None], Awaitable[Result]] | None" = attrs.field(
        default=None, repr=False, eq=False
    )

    async def settled(self, timeout: float | None = None) -> "Result":  # noqa: ASYNC109 - it may be repeated
        """Wait until the chain has settled the result. Return the result with the amount paid.

        Raises ResultTakenBack if the job ended without this result, and WaitTimedOut.
        """
        return self if self.confirm is None else await self.confirm(self, timeout)

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def text(self) -> str | None:
        """Text of a chat, completion or response, or None if the output is not only text."""
        return read_answer(self.output).text

    @property
    def cost(self) -> int | None:
        """Cost of the job, or of this line of a bundle, in base units. None if the fee_terms are unknown."""
        parts = self.cost_parts
        return None if parts is None else parts.total

    @property
    def cost_parts(self) -> CostParts | None:
        """Parts of `cost`: the provider's pay, the protocol fee and the relay charge."""
        return cost_parts_of(self.job, self.fee_terms) if self.share is None else self.share


def provider_cost(job: Job) -> int:
    """Return the pay of a settled job's provider."""
    order = job.svc
    return quotes.cost(
        order.rate_in, order.rate_out, order.units_in, order.units_out, completion_tok=order.completion_tok
    )


def cost_parts_of(job: Job, fee_terms: FeeTerms | None = None) -> CostParts | None:
    """Return the reported parts of a completed job's cost, or compute them from `fee_terms`. None if unknown."""
    reported = job.svc.cost_parts
    if job.status != "completed":
        return None
    if reported is not None:
        return CostParts(reported.provider, reported.fee, reported.gas_fee)
    return None if fee_terms is None else quotes.cost_parts(provider_cost(job), fee_terms)


def read_job_id(job_id: str) -> bytes:
    try:
        return read_hex(job_id, 32, "job_id")
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None


@raises_svc_errors
@attrs.frozen
class Results:
    """Reads results from gateways."""

    account: Account

    async def open(self, job: Job) -> Result:
        """Return the result of a job. Raises JobFailed if the job ended without a result, and ResultUnreadable."""
        body = await self.read(job.id, self._require_cid(job))
        return Result(job, body.output, body.usage, fee_terms=self.account.last_fee_terms)

    async def read(self, job_id: str, cid: str) -> ResultBody:
        """Read the result with this content id. Raises ResultUnreadable, also for a result that names another job."""
        raw = read_job_id(job_id)
        plaintext = bytearray()

        def open_reader() -> ResultReader:
            plaintext.clear()
            return ResultReader(market, keys, raw)

        def feed(reader: ResultReader, chunk: bytes) -> None:
            plaintext.extend(reader.pull(chunk))

        def finish_reader(reader: ResultReader) -> None:
            plaintext.extend(reader.finish())

        market, keys = await self.account.market(), await self.account.result_keys()
        await self.account.checked_reader.read(cid, open_reader, feed, finish_reader)
        if len(plaintext) <= _MAX_INLINE_PARSE_BYTES:
            return parse_result_body(bytes(plaintext), raw)
        return await to_thread.run_sync(parse_result_body, bytes(plaintext), raw)

    async def read_sealed(self, job: Job) -> bytes:
        """Return the settled result of a job, still sealed."""
        content = bytearray()
        await self.account.checked_reader.read(
            self._require_cid(job), content.clear, lambda _, chunk: content.extend(chunk), lambda _: None
        )
        return bytes(content)

    async def save(self, job: Job, path: Path) -> int:
        """Write a result of any size to a file, which appears once it is complete. Return the file's size in bytes.

        The file contains the result's JSON, `{"job_id", "output", "usage", "v"}`.
        """
        raw, cid = read_job_id(job.id), self._require_cid(job)
        market, keys = await self.account.market(), await self.account.result_keys()
        with open_atomic(path) as target:

            def open_reader() -> ResultReader:
                target.seek(0)
                target.truncate()
                return ResultReader(market, keys, raw)

            def feed(reader: ResultReader, chunk: bytes) -> None:
                target.write(reader.pull(chunk))

            def finish_reader(reader: ResultReader) -> None:
                target.write(reader.finish())

            await self.account.checked_reader.read(cid, open_reader, feed, finish_reader)
            return target.tell()

    def _require_cid(self, job: Job) -> str:
        if job.status in {"failed", "cancelled"}:
            raise JobFailed(job.id, CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because, job.status))
        if job.result_cid is None:
            raise ResultUnreadable(f"job {job.id} is {job.status} and has no result yet", code="no_result")
        return job.result_cid
