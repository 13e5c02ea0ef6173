"""Seal an output to its owner and keep it. From here on nothing runs a second time."""

from typing import Final

import attrs
import trio

from common.address_book import AddressBook
from common.box import PublicKey
from common.envelope import ResultBody
from common.refusal import Refused
from common.sealed_result import ResultSealer
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import Finished, SealedJob
from svcd.journal.result_files import LONGEST_ROW
from svcd.payload.sealable import sealable
from svcd.stages.pipeline import Pipeline
from svcd.stages.uploader import needs_upload

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
