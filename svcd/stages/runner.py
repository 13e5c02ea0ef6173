"""Running work on its backend, within the time that the SLA leaves."""

from typing import Final

import attrs
import trio

from common.address_book import AddressBook
from common.box import PublicKey
from common.envelope import ResultBody
from common.refusal import Refused
from common.sealed_result import ResultSealer
from svcd.backends.backend import Backend, Breaker
from svcd.base import metrics
from svcd.base.errors import WorkFailed
from svcd.base.timings import Timings
from svcd.journal.held_job import Finished, Opened, SealedJob, WorkOutput
from svcd.journal.journal import LONGEST_ROW
from svcd.payload.opening import sealable
from svcd.stages.pipeline import Drain, Pipeline
from svcd.stages.settler import needs_upload

# Beyond the deadline, so that a backend which keeps to it can say itself why it did not finish.
_LENIENCE: Final = 0.5


@attrs.frozen(slots=True, eq=False)
class Runner:
    """Of one model."""

    model: str
    backend: Backend
    breaker: Breaker
    timings: Timings
    pipeline: Pipeline
    drain: Drain

    async def step(self, opened: Opened) -> None:
        started = trio.current_time()
        if started >= opened.work.deadline:
            raise WorkFailed("deadline_wait", "no time is left to run it in")
        try:
            with self.drain.work(), opened.held.work(), metrics.backend_latency.labels(self.model).time():
                output = await self._run(opened)
        except WorkFailed as failure:
            self.breaker.failed(failure.backend_fault)
            raise
        except Exception:
            self.breaker.failed(backend_fault=True)
            raise
        self.breaker.succeeded()
        self.timings.ran(self.model, trio.current_time() - started)
        await self.pipeline.to_seal.send(
            opened.held.sla_ends, Finished(opened.held, output, opened.result_key, started)
        )

    async def _run(self, opened: Opened) -> WorkOutput:
        deadline = opened.work.deadline
        output = None
        with trio.move_on_at(deadline + _LENIENCE):
            output = await self.backend.run(opened.work)
        if output is None or trio.current_time() > deadline:
            raise WorkFailed("sla_abandon", "the backend was not done within the SLA's margin", backend_fault=True)
        return output


# Sealing an output to its owner, and keeping it: from here on nothing is run a second time.

_PIECE: Final = 65_536  # what the sealer is fastest with
_SLIGHT: Final = 16 * 1024  # characters
_MEMBER: Final = 8  # that a member of an object or a list counts for


@attrs.frozen(slots=True, eq=False)
class SealStage:
    deployment: AddressBook
    pipeline: Pipeline

    async def step(self, finished: Finished) -> None:
        held, output = finished.held, finished.output
        job, book = held.job, self.deployment

        def seal() -> bytes:
            try:
                body = ResultBody(job.job_id, sealable(output.output), output.usage).encode()
            except Refused as refusal:
                raise WorkFailed("backend_error", f"the output is no JSON to be sealed: {refusal}") from None
            return sealed_result(finished.result_key, book.chain_id, book.job_registry, job.job_id, body)

        result = seal() if is_slight(output.output) else await trio.to_thread.run_sync(seal)
        completion_tok = min(output.completion_tok, job.units_out)
        await self.pipeline.journal.sealed(job.job_id, completion_tok, result)
        kept = result if len(result) <= LONGEST_ROW else None
        sealed = SealedJob(held, completion_tok, len(result), result=kept, started=finished.started)
        channel = self.pipeline.to_upload if needs_upload(sealed.length) else self.pipeline.to_settle
        await channel.send(held.sla_ends, sealed)


def is_slight(value: object) -> bool:
    """Whether an output is sealed in less time than a thread takes for it."""
    left, waiting = _SLIGHT, [value]
    while waiting and left > 0:
        one = waiting.pop()
        if isinstance(one, dict | list):
            left -= _MEMBER * len(one)
            if left > 0:
                waiting.extend(one.values() if isinstance(one, dict) else one)
        else:
            left -= len(one) if isinstance(one, str) else 1
    return left > 0


def sealed_result(result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes, body: bytes) -> bytes:
    sealer = ResultSealer(result_key, chain_id, job_registry, job_id)
    view = memoryview(body)
    parts = [sealer.push(bytes(view[at : at + _PIECE])) for at in range(0, len(body), _PIECE)]
    return b"".join([*parts, sealer.finish()])
