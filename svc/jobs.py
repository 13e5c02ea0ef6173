"""Read jobs, wait for them, cancel them, and read the public list of jobs."""

from collections.abc import Callable
from typing import Final, Literal

import anyio
import attrs

from common.scalars import hex_of
from svc.account import Account
from svc.core.orders import cancellation_request
from svc.error_conversion import raises_svc_errors
from svc.errors import ApiError, ConnectionFailed, InternalError, InvalidRequest, NotFound, PostRefused, WaitTimedOut
from svc.records import LIVE_JOB_STATUSES, BookRow, Cancelled, Job, Progress, Summary, Why
from svc.results import read_job_id
from svc.wire.events import STREAM_TIMEOUT_S, ChangeListener, call_without_session, open_change_listener
from svc.wire.pages import read_pages

FIRST_POLL_PAUSE_S: Final = 0.25
MAX_POLL_PAUSE_S: Final = 5.0
_MAX_STORED_POLL_PAUSE_S: Final = 1.0  # for a stored post, because no event reports that the post was mined
# Without a timeout, `wait` stops after this time if the job is not indexed yet.
_INDEXING_TIMEOUT_S: Final = 300.0
# Maximum time from a missed deadline until the job is reclaimed.
_RECLAIM_GRACE_S: Final = 600.0
_MAX_JOB_DURATION_S: Final = (
    2 * 86_400 + _RECLAIM_GRACE_S
)  # a day until the claim, a day for the window, and the reclaim
_NOT_THE_OWNER_CODE: Final = "NotTheOwner"  # error code, also for a job that is not mined yet
# `cancel` waits at most this long until a stored post is mined.
_POSTING_TIMEOUT_S: Final = 60.0

JobStateName = Literal["Open", "Claimed", "Settled", "Cancelled"]
OnJobChange = Callable[[Job], object]


@raises_svc_errors
@attrs.frozen
class Jobs:
    """Reads, follows and cancels jobs."""

    account: Account

    async def get(self, job_id: str) -> Job:
        """Return a job. Raises NotFound until the coordinator has a record of the job."""
        expected_id = hex_of(read_job_id(job_id))
        job = await self.account.transport.get(f"/v1/jobs/{expected_id}", Job)
        # Reject another job, because the client would open the result of that job.
        if (job.id.lower(), job.svc.job_id.lower()) != (expected_id, expected_id):
            message = f"the coordinator returned job {job.id} instead of {expected_id}"
            raise InternalError(message, type_=InternalError.type, status=200)
        return job

    async def progress(self, job_id: str) -> Progress:
        """Return the progress of a job, including steps that are not mined yet.

        Raises NotFound for an unknown job, or if the coordinator does not support progress.
        """
        expected_id = hex_of(read_job_id(job_id))
        try:
            progress = await self.account.transport.get(f"/v1/jobs/{expected_id}/progress", Progress)
        except NotFound:
            if self.account.supports_progress is None:
                self.account.supports_progress = False
            raise
        if progress.job_id.lower() != expected_id:
            message = f"the coordinator returned the progress of job {progress.job_id} instead of {expected_id}"
            raise InternalError(message, type_=InternalError.type, status=200)
        self.account.supports_progress = True
        return progress

    async def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait may be repeated
        on_change: OnJobChange | None = None,
    ) -> Job:
        """Wait until a job has ended, and return it. Calls `on_change` after the first read and at each new status.

        Reads the job at intervals, and when the coordinator reports a change. If the coordinator cannot report changes,
        polls with increasing pauses. Without `timeout`, waits as long as the job can last: until the order expires,
        plus the window. Raises WaitTimedOut, and PostRefused if the stored order could not be posted.
        """
        path = f"/v1/jobs/{hex_of(read_job_id(job_id))}/events"
        ignored = () if on_change is not None else LIVE_JOB_STATUSES  # without on_change, only the end matters
        async with open_change_listener(self.account.transport, path, call_without_session, ignored=ignored) as changes:
            return await self._poll_until_ended(job_id, changes, timeout, on_change)

    async def _poll_until_ended(
        self, job_id: str, changes: ChangeListener, timeout_seconds: float | None, on_change: OnJobChange | None
    ) -> Job:
        started, pause = anyio.current_time(), FIRST_POLL_PAUSE_S
        max_seconds = _INDEXING_TIMEOUT_S if timeout_seconds is None else timeout_seconds
        while True:
            job = await self._find_job(job_id)
            if job is not None:
                if job.status != changes.status:
                    changes.status = job.status
                    if on_change is not None:
                        on_change(job)
                    if timeout_seconds is None:
                        order = job.svc
                        now = self.account.transport.clock.now()
                        remaining = max_remaining_s(now, job.in_progress_at, order.expires_at, order.sla_secs)
                        max_seconds = anyio.current_time() - started + remaining
                if job.ended:
                    return job
                changes.listen()
            elif (progress := await self._read_progress(job_id)) is not None:
                require_posted(progress)
                pause = min(pause, _MAX_STORED_POLL_PAUSE_S)
            remaining = started + max_seconds - anyio.current_time()
            if remaining <= 0:
                raise WaitTimedOut(f"job {job_id}", max_seconds)
            await changes.pause(min(pause, remaining), min(STREAM_TIMEOUT_S, remaining))
            pause = min(pause * 1.5, MAX_POLL_PAUSE_S)

    async def cancel(self, job_id: str) -> Cancelled:
        """Cancel an open job. If the job's post is stored but not mined, first wait until the post is mined.

        An ended job is not changed. Raises InvalidRequest with code `NotCancellable` for a claimed job.
        """
        raw = read_job_id(job_id)
        try:
            return await self._cancel(raw)
        except (NotFound, InvalidRequest) as error:
            unknown = isinstance(error, NotFound) or error.code == _NOT_THE_OWNER_CODE
            if not (unknown and await self._wait_for_post(hex_of(raw))):
                raise
        return await self._cancel(raw)

    async def _cancel(self, raw: bytes) -> Cancelled:
        market, signer = await self.account.market(), self.account.wallet()
        issued_at = self.account.transport.clock.now()  # an earlier answer has already set the clock
        signature = await signer.sign(cancellation_request(market, raw, issued_at))
        body = {"issued_at": issued_at, "signature": hex_of(signature)}
        # Cancelling is idempotent.
        return await self.account.transport.post(f"/v1/jobs/{hex_of(raw)}/cancel", Cancelled, body, retry=True)

    async def book(
        self,
        *,
        state: JobStateName | None = None,
        model: int | None = None,
        provider: int | None = None,
        owner: str | None = None,
        min_rate_in: int | None = None,
        min_rate_out: int | None = None,
        posted_before: int | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        limit: int | None = 100,
        offset: int = 0,
    ) -> list[BookRow]:
        """Return jobs from the public list."""
        query = {
            "state": state,
            "model": model,
            "provider": provider,
            "owner": owner,
            "min_rate_in": min_rate_in,
            "min_rate_out": min_rate_out,
            "posted_before": posted_before,
            "order": order,
        }
        transport = self.account.transport
        return await read_pages(transport, "/evm/jobs", "jobs", BookRow, limit=limit, offset=offset, params=query)

    async def mine(self, *, limit: int | None = 100, offset: int = 0) -> list[BookRow]:
        """Return this wallet's jobs, newest first."""
        owner = hex_of(self.account.wallet().address)
        return await self.book(owner=owner, order="newest", limit=limit, offset=offset)

    async def row(self, job_id: str) -> BookRow:
        return await self.account.transport.get(f"/evm/jobs/{hex_of(read_job_id(job_id))}", BookRow)

    async def why(self, job_id: str) -> Why:
        """Return why each provider does not claim a job, and which changes would let it claim the job."""
        return await self.account.transport.get(f"/v1/jobs/{hex_of(read_job_id(job_id))}/why", Why)

    async def summary(self, owner: str | None = None) -> Summary:
        """Return totals of an owner's jobs. The default owner is this wallet."""
        address = owner if owner is not None else hex_of(self.account.wallet().address)
        return await self.account.transport.get("/evm/jobs/summary", Summary, {"owner": address})

    async def _find_job(self, job_id: str) -> Job | None:
        try:
            return await self.get(job_id)
        except NotFound:
            return None
        except (ApiError, ConnectionFailed) as error:
            if not (error.retryable or isinstance(error, ConnectionFailed)):
                raise
            return None  # keep waiting while the coordinator is unreachable

    async def _read_progress(self, job_id: str) -> Progress | None:
        """Return the progress of a job, or None if the progress cannot be read."""
        if self.account.supports_progress is False:
            return None
        try:
            return await self.progress(job_id)
        except (ApiError, ConnectionFailed):
            return None

    async def _wait_for_post(self, job_id: str) -> bool:
        """Wait until a stored post is mined, and return True. Return False on timeout, or if no post is stored."""
        with anyio.move_on_after(_POSTING_TIMEOUT_S):
            while (progress := await self._read_progress(job_id)) is not None:
                require_posted(progress)
                if await self._find_job(job_id) is not None:
                    return True
                await self.account.transport.sleep(FIRST_POLL_PAUSE_S)
        return False


def max_remaining_s(now: int, claimed_at: int | None, expires_at: int, sla_secs: int) -> float:
    """Return the maximum number of seconds until the job ends."""
    start = claimed_at if claimed_at is not None else expires_at
    return min(max(0.0, start + sla_secs + _RECLAIM_GRACE_S - now), _MAX_JOB_DURATION_S)


def require_posted(progress: Progress) -> None:
    """Raise PostRefused if the job's post was rejected."""
    if progress.status == "refused":
        reasons = [step.reason for step in progress.steps if step.op == "post" and step.reason is not None]
        raise PostRefused(progress.job_id, reasons[0] if reasons else "refused")
