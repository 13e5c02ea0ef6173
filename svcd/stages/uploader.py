"""Results that are too large for a settle go ahead of it, as a file that the settle names."""

from typing import Final

import attrs

from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import Refused, Uploaded
from svcd.coordinator.sessions import SignInRefused
from svcd.failures import JobFailed
from svcd.held import Sealed
from svcd.stages.pipeline import Pipeline
from svcd.stages.settle_failures import refused, sign_in_refused

LONGEST_INLINE: Final = 15_679_488


def needs_upload(length: int) -> bool:
    return length > LONGEST_INLINE


@attrs.frozen(slots=True, eq=False)
class Uploader:
    coordinator: Coordinator
    pipeline: Pipeline

    async def step(self, sealed: Sealed) -> None:
        job_id = sealed.held.job.job_id
        content = await self.pipeline.journal.open_result(job_id)
        try:
            outcome = await self.coordinator.upload(content, sealed.held.sla_ends)
        finally:
            if not isinstance(content, bytes):
                content.close()
        match outcome:
            case Uploaded(cid=cid):
                if cid is None:
                    raise JobFailed("settle_upload_invalid", "the upload was answered without a content id")
                await self.pipeline.journal.uploaded(job_id, cid)
                await self.pipeline.to_settle.send(sealed.held.sla_ends, attrs.evolve(sealed, result_cid=cid))
            case Refused():
                raise refused(outcome)
            case SignInRefused():
                raise sign_in_refused(outcome)
            case _:
                raise JobFailed("settle_transport_error", outcome.detail)
