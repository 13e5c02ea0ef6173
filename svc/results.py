"""Results: read from a gateway, opened here, held against their job."""

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
from svc.core.sealing import ResultReader, read_body
from svc.error_conversion import raises_svc_errors
from svc.errors import JobFailed, OrderRefused, ResultUnreadable
from svc.own_files import appearing
from svc.records import ENDED_BECAUSE, Job, RestsOn

_SMALL: Final = 1 << 15  # bytes of JSON that are read in less time than the way to a thread takes


@attrs.frozen(slots=True)
class Result:
    """What the model gave. `usage` is the provider's own count; what is charged stands in the job.

    `provisional`: the coordinator has the settle that names it, and the chain has not, or not for sure; `rests_on` says
    how far it is, and `job` is the job as it will be. `settled` waits for the chain.
    """

    job: Job
    output: Any
    usage: dict[str, object]
    rests_on: RestsOn = "block"
    provisional: bool = False
    charges: FeeTerms | None = attrs.field(default=None, repr=False, eq=False)
    confirm: "Callable[[Result, float | None], Awaitable[Result]] | None" = attrs.field(
        default=None, repr=False, eq=False
    )

    async def settled(self, timeout: float | None = None) -> "Result":  # noqa: ASYNC109 - it goes on
        """The same result once the chain has settled it, with what was paid. Raises ResultTakenBack where the job ended
        without it, WaitTimedOut."""
        return self if self.confirm is None else await self.confirm(self, timeout)

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def cost(self) -> int | None:
        """What the job cost its owner in all, in base units; None if the coordinator does not report the charges."""
        parts = self.cost_parts
        return None if parts is None else parts.total

    @property
    def cost_parts(self) -> CostParts | None:
        """The parts of `cost`: the provider's pay, the protocol's fee, the relay charge."""
        return cost_parts_of(self.job, self.charges)


def provider_part(job: Job) -> int:
    """Return what a settled job's provider is paid."""
    order = job.svc
    return quotes.cost(
        order.rate_in, order.rate_out, order.units_in, order.units_out, completion_tok=order.completion_tok
    )


def cost_parts_of(job: Job, charges: FeeTerms | None = None) -> CostParts | None:
    """Return the parts of a completed job's cost as reported, or computed from `charges`. None if both are unknown."""
    told = job.svc.cost_parts
    if job.status != "completed":
        return None
    if told is not None:
        return CostParts(told.provider, told.fee, told.gas_fee)
    return None if charges is None else quotes.cost_parts(provider_part(job), charges)


def read_job_id(job_id: str) -> bytes:
    try:
        return read_hex(job_id, 32, "job_id")
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None


@raises_svc_errors
@attrs.frozen
class Results:
    account: Account

    async def open(self, job: Job) -> Result:
        """Raises JobFailed for a job that ended without a result, ResultUnreadable for one that cannot be had."""
        body = await self.read(job.id, self._cid(job))
        return Result(job, body.output, body.usage, charges=self.account.charges)

    async def read(self, job_id: str, cid: str) -> ResultBody:
        """The result of this content id, which must be of this job. Raises ResultUnreadable."""
        raw = read_job_id(job_id)
        plaintext = bytearray()

        def begin() -> ResultReader:
            plaintext.clear()
            return ResultReader(market, keys, raw)

        def take(reader: ResultReader, piece: bytes) -> None:
            plaintext.extend(reader.pull(piece))

        def end(reader: ResultReader) -> None:
            plaintext.extend(reader.finish())

        market, keys = await self.account.market(), await self.account.result_keys()
        await self.account.gateways.read(cid, begin, take, end)
        if len(plaintext) <= _SMALL:
            return read_body(bytes(plaintext), raw)
        return await to_thread.run_sync(read_body, bytes(plaintext), raw)

    async def save(self, job: Job, path: Path) -> int:
        """Open a result of any size into a file, which appears once it is whole; how many bytes it has.

        The file holds the result's JSON, `{"job_id", "output", "usage", "v"}`. It opens for its own job alone.
        """
        raw, cid = read_job_id(job.id), self._cid(job)
        market, keys = await self.account.market(), await self.account.result_keys()
        with appearing(path) as target:

            def begin() -> ResultReader:
                target.seek(0)
                target.truncate()
                return ResultReader(market, keys, raw)

            def take(reader: ResultReader, piece: bytes) -> None:
                target.write(reader.pull(piece))

            def end(reader: ResultReader) -> None:
                target.write(reader.finish())

            await self.account.gateways.read(cid, begin, take, end)
            return target.tell()

    def _cid(self, job: Job) -> str:
        if job.status in {"failed", "cancelled"}:
            raise JobFailed(job.id, ENDED_BECAUSE.get(job.svc.ended_because, job.status))
        if job.result_cid is None:
            raise ResultUnreadable(f"job {job.id} is {job.status}: it has no result yet", code="no_result")
        return job.result_cid
