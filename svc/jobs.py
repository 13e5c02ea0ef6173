"""Jobs as the coordinator knows them: status, waiting, cancelling, the book."""

from collections.abc import Callable
from typing import Final, Literal

import anyio
import attrs

from common.scalars import hex_of
from svc.account import Account
from svc.core.orders import cancellation
from svc.error_conversion import raises_svc_errors
from svc.errors import ApiError, ConnectionFailed, InternalError, InvalidRequest, NotFound, PostRefused, WaitTimedOut
from svc.records import LIVE_JOB, BookRow, Cancelled, Job, Progress, Summary, Why
from svc.results import read_job_id
from svc.wire.events import QUIET, ToldChanges, changes_of, unauthorised
from svc.wire.pages import paged

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
_STORED_PAUSE: Final = 1.0  # between looks at a job whose post is under way: no stream tells of its block
_APPEARS_SECONDS: Final = 300.0  # a broadcast post may be mined late, and the index follows the chain
_GRACE_SECONDS: Final = 600.0  # for a missed window to be noticed and ended
_LONGEST_SECONDS: Final = 2 * 86_400 + _GRACE_SECONDS  # of any order: a day until its claim, a day for its window
_NO_SUCH_JOB: Final = "NotTheOwner"  # or the job is not in a block yet
_POSTING_SECONDS: Final = 60.0  # until a post that is stored has its block, for what needs that

State = Literal["Open", "Claimed", "Settled", "Cancelled"]
JobSeen = Callable[[Job], object]


@raises_svc_errors
@attrs.frozen
class Jobs:
    account: Account

    async def get(self, job_id: str) -> Job:
        """Raises NotFound until the coordinator has a record of the job."""
        asked = hex_of(read_job_id(job_id))
        job = await self.account.transport.get(f"/v1/jobs/{asked}", Job)
        if (job.id.lower(), job.svc.job_id.lower()) != (asked, asked):  # what is opened next would be another's result
            raise InternalError(f"asked for job {asked}, told of {job.id}", type_=InternalError.type, status=200)
        return job

    async def progress(self, job_id: str) -> Progress:
        """A job with all that is under way of it, before its blocks. Raises NotFound for one that is not known, and by
        a coordinator that tells no progress."""
        asked = hex_of(read_job_id(job_id))
        try:
            told = await self.account.transport.get(f"/v1/jobs/{asked}/progress", Progress)
        except NotFound:
            if self.account.tells_progress is None:
                self.account.tells_progress = False
            raise
        if told.job_id.lower() != asked:
            raise InternalError(f"asked for job {asked}, told of {told.job_id}", type_=InternalError.type, status=200)
        self.account.tells_progress = True
        return told

    async def wait(self, job_id: str, *, timeout: float | None = None, on_change: JobSeen | None = None) -> Job:  # noqa: ASYNC109 - the wait goes on for whoever calls again
        """The job once it has ended, however it ended. `on_change` is told of the job at first and at each new status.
        It looks when the coordinator tells of a change, and now and then besides; at one that tells none, ever less.

        Without a `timeout` it waits as long as the job can last: until its order expires, and its window after that.
        Raises WaitTimedOut; PostRefused for an order that was stored and could not be posted.
        """
        path = f"/v1/jobs/{hex_of(read_job_id(job_id))}/events"
        ignored = () if on_change is not None else LIVE_JOB  # who waits for the end alone
        async with changes_of(self.account.transport, path, unauthorised, ignored=ignored) as changes:
            return await self._until_ended(job_id, changes, timeout, on_change)

    async def _until_ended(
        self, job_id: str, changes: ToldChanges, patience: float | None, on_change: JobSeen | None
    ) -> Job:
        began, pause = anyio.current_time(), FIRST_PAUSE
        most = _APPEARS_SECONDS if patience is None else patience
        while True:
            job = await self._find(job_id)
            if job is not None:
                if job.status != changes.status:
                    changes.status = job.status
                    if on_change is not None:
                        on_change(job)
                    if patience is None:
                        order = job.svc
                        now = self.account.transport.clock.now()
                        left = seconds_left(now, job.in_progress_at, order.expires_at, order.sla_secs)
                        most = anyio.current_time() - began + left
                if job.ended:
                    return job
                changes.listen()
            elif (told := await self._under_way(job_id)) is not None:
                require_posted(told)
                pause = min(pause, _STORED_PAUSE)
            left = began + most - anyio.current_time()
            if left <= 0:
                raise WaitTimedOut(f"job {job_id}", most)
            await changes.pause(min(pause, left), min(QUIET, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def cancel(self, job_id: str) -> Cancelled:
        """Take an open job back; one whose post is stored, once that has its block. One that ended already stays as it
        is; a claimed one is InvalidRequest with code `NotCancellable`."""
        raw = read_job_id(job_id)
        try:
            return await self._cancel(raw)
        except (NotFound, InvalidRequest) as refused:
            unknown = isinstance(refused, NotFound) or refused.code == _NO_SUCH_JOB
            if not (unknown and await self._posted(hex_of(raw))):
                raise
        return await self._cancel(raw)

    async def _cancel(self, raw: bytes) -> Cancelled:
        market, signer = await self.account.market(), self.account.wallet()
        issued_at = self.account.transport.clock.now()  # after an answer: before the first, the clock is only ours
        signature = await signer.sign(cancellation(market, raw, issued_at))
        body = {"issued_at": issued_at, "signature": hex_of(signature)}
        # Cancelling twice is cancelling once.
        return await self.account.transport.post(f"/v1/jobs/{hex_of(raw)}/cancel", Cancelled, body, safe=True)

    async def book(
        self,
        *,
        state: State | None = None,
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
        """Rows of the job book, everybody's."""
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
        return await paged(transport, "/evm/jobs", "jobs", BookRow, limit=limit, offset=offset, params=query)

    async def mine(self, *, limit: int | None = 100, offset: int = 0) -> list[BookRow]:
        """This wallet's jobs, the newest first."""
        owner = hex_of(self.account.wallet().address)
        return await self.book(owner=owner, order="newest", limit=limit, offset=offset)

    async def row(self, job_id: str) -> BookRow:
        return await self.account.transport.get(f"/evm/jobs/{hex_of(read_job_id(job_id))}", BookRow)

    async def why(self, job_id: str) -> Why:
        """Why nobody has claimed a job, provider by provider, and what would change that."""
        return await self.account.transport.get(f"/v1/jobs/{hex_of(read_job_id(job_id))}/why", Why)

    async def summary(self, owner: str | None = None) -> Summary:
        """Totals of an owner's jobs, this wallet's unless another is named."""
        address = owner if owner is not None else hex_of(self.account.wallet().address)
        return await self.account.transport.get("/evm/jobs/summary", Summary, {"owner": address})

    async def _find(self, job_id: str) -> Job | None:
        try:
            return await self.get(job_id)
        except NotFound:
            return None
        except (ApiError, ConnectionFailed) as failed:
            if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                raise
            return None  # a coordinator that is away for a while is what waiting is for

    async def _under_way(self, job_id: str) -> Progress | None:
        """None where nothing is told."""
        if self.account.tells_progress is False:
            return None
        try:
            return await self.progress(job_id)
        except (ApiError, ConnectionFailed):
            return None

    async def _posted(self, job_id: str) -> bool:
        """True once a job whose post was under way has its block; False for any other."""
        with anyio.move_on_after(_POSTING_SECONDS):
            while (told := await self._under_way(job_id)) is not None:
                require_posted(told)
                if await self._find(job_id) is not None:
                    return True
                await self.account.transport.sleep(FIRST_PAUSE)
        return False


def seconds_left(now: int, claimed_at: int | None, expires_at: int, sla_secs: int) -> float:
    """How long a job can still last."""
    begins = claimed_at if claimed_at is not None else expires_at
    return min(max(0.0, begins + sla_secs + _GRACE_SECONDS - now), _LONGEST_SECONDS)


def require_posted(told: Progress) -> None:
    """Raises PostRefused for a job whose post will not happen."""
    if told.status == "refused":
        reasons = [step.reason for step in told.steps if step.op == "post" and step.reason is not None]
        raise PostRefused(told.job_id, reasons[0] if reasons else "refused")
