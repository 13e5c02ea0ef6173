"""Sealing an output to its owner, and keeping it: from here on nothing is run a second time."""

from typing import Final

import attrs
import trio

from common.box import PublicKey
from common.envelope import ResultBody
from common.refusal import Refused
from common.result import ResultSealer
from svcd.coordinator.deployment import Deployment
from svcd.failures import JobFailed
from svcd.held import Finished, Sealed
from svcd.journal.results import LONGEST_ROW
from svcd.sealable import sealable
from svcd.stages.pipeline import Pipeline
from svcd.stages.uploader import needs_upload

_PIECE: Final = 65_536  # what the sealer is fastest with


@attrs.frozen(slots=True, eq=False)
class Sealer:
    deployment: Deployment
    pipeline: Pipeline

    async def step(self, finished: Finished) -> None:
        held, output = finished.held, finished.output
        job, book = held.job, self.deployment.book

        def seal() -> bytes:
            try:
                body = ResultBody(job.job_id, sealable(output.output), output.usage).encode()
            except Refused as refusal:
                raise JobFailed("backend_error", f"the output is no JSON to be sealed: {refusal}") from None
            return sealed_result(finished.result_key, book.chain_id, book.job_registry, job.job_id, body)

        result = await trio.to_thread.run_sync(seal)
        completion_tok = min(output.completion_tok, job.units_out)
        await self.pipeline.journal.sealed(job.job_id, completion_tok, result)
        kept = result if len(result) <= LONGEST_ROW else None
        sealed = Sealed(held, completion_tok, len(result), result=kept, started=finished.started)
        channel = self.pipeline.to_upload if needs_upload(sealed.length) else self.pipeline.to_settle
        await channel.send(held.sla_ends, sealed)


def sealed_result(result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes, body: bytes) -> bytes:
    sealer = ResultSealer(result_key, chain_id, job_registry, job_id)
    view = memoryview(body)
    parts = [sealer.push(bytes(view[at : at + _PIECE])) for at in range(0, len(body), _PIECE)]
    return b"".join([*parts, sealer.finish()])
