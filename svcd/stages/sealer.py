"""Seal an output to the owner's result key, and store the result in the journal.

A job with a stored result never runs again.
"""

from typing import Final

import attrs
import trio

from common.address_book import AddressBook
from common.box import PublicKey
from common.envelope import ResultBody
from common.refusal import Refused
from common.sealed_result import ResultSealer
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import FinishedJob, SealedJob
from svcd.journal.result_files import MAX_ROW_BYTES
from svcd.payload.sealable import to_sealable
from svcd.stages.pipeline import Pipeline
from svcd.stages.uploader import needs_upload

_CHUNK_BYTES: Final = 65_536  # the fastest size in measurements
_MAX_INLINE_CHARACTERS: Final = 16 * 1024
_CHARACTERS_PER_MEMBER: Final = 8  # estimated cost of each member of an object or list


@attrs.frozen(slots=True, eq=False)
class SealStage:
    address_book: AddressBook
    pipeline: Pipeline

    async def step(self, finished: FinishedJob) -> None:
        held, output = finished.claimed_job, finished.output
        job, book = held.job, self.address_book

        def seal() -> bytes:
            try:
                body = ResultBody(job.job_id, to_sealable(output.output), output.usage).encode()
            except Refused as refusal:
                raise WorkFailed("backend_error", f"the output cannot be sealed: {refusal}") from None
            return seal_body(finished.result_key, book.chain_id, book.job_registry, job.job_id, body)

        result = seal() if is_quick_to_seal(output.output) else await trio.to_thread.run_sync(seal)
        completion_tok = min(output.completion_tok, job.units_out)
        await self.pipeline.journal.record_sealed(job.job_id, completion_tok, result)
        inline = result if len(result) <= MAX_ROW_BYTES else None
        sealed = SealedJob(held, completion_tok, len(result), result=inline, started_at=finished.started_at)
        channel = self.pipeline.to_upload if needs_upload(sealed.result_length) else self.pipeline.to_settle
        await channel.send(held.window_ends_at, sealed)


def is_quick_to_seal(value: object) -> bool:
    """Return True if sealing the output takes less time than starting a thread."""
    budget, waiting = _MAX_INLINE_CHARACTERS, [value]
    while waiting and budget > 0:
        item = waiting.pop()
        if isinstance(item, dict | list):
            budget -= _CHARACTERS_PER_MEMBER * len(item)
            if budget > 0:
                waiting.extend(item.values() if isinstance(item, dict) else item)
        else:
            budget -= len(item) if isinstance(item, str) else 1
    return budget > 0


def seal_body(result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes, body: bytes) -> bytes:
    sealer = ResultSealer(result_key, chain_id, job_registry, job_id)
    view = memoryview(body)
    parts = [sealer.push(bytes(view[at : at + _CHUNK_BYTES])) for at in range(0, len(body), _CHUNK_BYTES)]
    return b"".join([*parts, sealer.finish()])
