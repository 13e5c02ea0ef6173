"""Upload a result that is too large for a settle, as a file that the settle names."""

from typing import Final

import attrs
import structlog
import trio

from svcd.base.end_reasons import WorkFailed
from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import (
    Uploaded,
    UploadOutcome,
    describe,
)
from svcd.journal.held_job import ClaimedJob, SealedJob
from svcd.stages.op_lookup import Lookup
from svcd.stages.pipeline import Pipeline
from svcd.stages.settler import is_final, untaken

log = structlog.get_logger(__name__)

_PAUSE: Final = 1.0  # doubled with each attempt, up to:
_LONGEST_PAUSE: Final = 10.0
LONGEST_INLINE: Final = 15_679_488


def needs_upload(length: int) -> bool:
    return length > LONGEST_INLINE


@attrs.frozen(slots=True, eq=False)
class Uploader:
    coordinator: Coordinator
    lookup: Lookup
    pipeline: Pipeline

    async def step(self, sealed: SealedJob) -> None:
        held, pause = sealed.held, _PAUSE
        while True:
            outcome = await self._upload(held)
            if isinstance(outcome, Uploaded):
                break
            log.warning("result not uploaded", job=held.name, outcome=describe(outcome))
            if is_final(outcome):
                raise untaken(outcome)
            held = (await self.lookup.of(held)).held
            if trio.current_time() + pause >= held.sla_ends:
                raise untaken(outcome)
            await trio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if outcome.cid is None:
            raise WorkFailed("settle_upload_invalid", "the upload was answered without a content id")
        await self.pipeline.journal.uploaded(held.job.job_id, outcome.cid)
        await self.pipeline.to_settle.send(held.sla_ends, attrs.evolve(sealed, held=held, result_cid=outcome.cid))

    async def _upload(self, held: ClaimedJob) -> UploadOutcome:
        content = await self.pipeline.journal.open_result(held.job.job_id)
        try:
            return await self.coordinator.upload(content, held.sla_ends)
        finally:
            if not isinstance(content, bytes):
                content.close()
