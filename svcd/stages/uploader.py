"""Upload a result that is too large for a settle. The settle then refers to the result by its content id."""

from typing import Final

import attrs
import structlog

from common.daemon.retries import retry
from svcd.base.end_reasons import WorkFailed
from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import (
    CoordinatorRefusal,
    Unanswered,
    Uploaded,
    UploadOutcome,
    describe_outcome,
)
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import ClaimedJob, SealedJob
from svcd.stages.job_lookup import JobLookup
from svcd.stages.pipeline import Pipeline
from svcd.stages.settler import is_final, upload_failure

log = structlog.get_logger(__name__)

_MAX_RETRY_PAUSE_S: Final = 10.0
MAX_INLINE_RESULT_BYTES: Final = 15_679_488  # largest result that the coordinator accepts inside a settle


@attrs.frozen(slots=True)
class _NotUploaded(Exception):
    """The upload failed, and a retry may succeed."""

    outcome: CoordinatorRefusal | Unanswered | SignInRefused


def needs_upload(length: int) -> bool:
    return length > MAX_INLINE_RESULT_BYTES


@attrs.frozen(slots=True, eq=False)
class Uploader:
    coordinator: Coordinator
    lookup: JobLookup
    pipeline: Pipeline

    async def step(self, sealed: SealedJob) -> None:
        held = sealed.claimed_job

        async def attempt() -> Uploaded:
            nonlocal held
            outcome = await self._upload(held)
            if isinstance(outcome, Uploaded):
                return outcome
            log.warning("result not uploaded", job=held.hex_id, outcome=describe_outcome(outcome))
            if is_final(outcome):
                raise upload_failure(outcome)
            held = (await self.lookup.look_up(held)).claimed_job
            raise _NotUploaded(outcome)

        try:
            uploaded = await retry(
                attempt, on=_NotUploaded, max_wait_s=_MAX_RETRY_PAUSE_S, deadline=lambda: held.window_ends_at
            )
        except _NotUploaded as last:
            raise upload_failure(last.outcome) from None
        if uploaded.cid is None:
            raise WorkFailed("settle_upload_invalid", "the response to the upload has no content id")
        await self.pipeline.journal.record_upload(held.job.job_id, uploaded.cid)
        await self.pipeline.to_settle.send(
            held.window_ends_at, attrs.evolve(sealed, claimed_job=held, result_cid=uploaded.cid)
        )

    async def _upload(self, held: ClaimedJob) -> UploadOutcome:
        content = await self.pipeline.journal.open_result(held.job.job_id)
        try:
            return await self.coordinator.upload_result(content, held.window_ends_at)
        finally:
            if not isinstance(content, bytes):
                content.close()
