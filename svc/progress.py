"""Results before their blocks: a posted order is followed by its progress, and opened once its settle is stored.

    post stored ─► claim stored ─► settle stored ─► opened ─► provisional ─► the chain has it: final
                                        │              │           └─► it came to nothing: taken back, and told
                                        └──────────────┴─► none, or it does not open: the chain's is waited for

Progress is the coordinator's word alone. What it names is opened with the checks of any result (its content id, the
job's own key, the job that its body names), so that a false word can give an answer of somebody who knows that key, and
no other; it costs nothing, since the money moves by the chain alone. Whoever is given such a result is told what it
rests on, and learns its end from `settled`.
"""

from typing import Final

import anyio
import attrs
import msgspec

from common.api.states import EndedBecause, JobState
from common.scalars import hex_of
from svc.account import Account
from svc.core.orders import PreparedOrder
from svc.errors import ApiError, ConnectionFailed, PostRefused, ResultTakenBack, ResultUnreadable, WaitTimedOut
from svc.jobs import FIRST_PAUSE, LONGEST_PAUSE, Jobs, JobSeen, require_posted, seconds_left
from svc.orders import Orders
from svc.records import ENDED_BECAUSE, ENDED_JOB, LIVE_JOB, Job, JobDetails, Progress, ProgressStep
from svc.results import Result, Results
from svc.wire.events import QUIET, ToldChanges, changes_of, unauthorised


@attrs.define(eq=False)
class _NewestProgress:
    """What a stream told last of a job, until it is looked at."""

    job_id: str
    told: Progress | None = None

    def take(self, data: bytes) -> bool:
        """False for any other message."""
        try:
            told = msgspec.json.decode(data, type=Progress, strict=False)
        except msgspec.MsgspecError:
            return False
        if told.job_id.lower() == self.job_id:
            self.told = told
        return True

    def look(self) -> Progress | None:
        told, self.told = self.told, None
        return told


@attrs.frozen
class ProvisionalResults:
    account: Account
    jobs: Jobs
    orders: Orders
    results: Results

    async def first(
        self,
        prepared: PreparedOrder,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the job goes on for whoever waits again
        on_change: JobSeen | None = None,
    ) -> Result | Job:
        """A provisional result as soon as one opens, or the job once it has ended. Raises WaitTimedOut, PostRefused."""
        began, told_status = anyio.current_time(), [""]

        def changed(job: Job) -> None:
            if on_change is not None and job.status != told_status[0]:
                on_change(job)
            told_status[0] = job.status

        if self.account.tells_progress is not False:
            result = await self._provisional(prepared, timeout, changed)
            if result is not None:
                return result
        left = None if timeout is None else max(0.0, began + timeout - anyio.current_time())
        try:
            return await self.jobs.wait(prepared.id, timeout=left, on_change=changed)
        except WaitTimedOut:
            if timeout is None:
                raise
            raise WaitTimedOut(f"job {prepared.id}", timeout) from None  # in all

    async def _provisional(self, prepared: PreparedOrder, patience: float | None, seen: JobSeen) -> Result | None:
        """None once the chain has the job's end, where no progress is told, or where the result that is told does not
        open: then the job is waited for as ever."""
        newest = _NewestProgress(prepared.id)
        path = f"/v1/jobs/{prepared.id}/events?provisional=1"
        async with changes_of(self.account.transport, path, unauthorised, newest.take) as changes:
            changes.listen()
            return await self._follow(prepared, patience, seen, newest, changes)

    async def _follow(
        self,
        prepared: PreparedOrder,
        patience: float | None,
        seen: JobSeen,
        newest: _NewestProgress,
        changes: ToldChanges,
    ) -> Result | None:
        began, pause = anyio.current_time(), FIRST_PAUSE
        most = self._longest(prepared) if patience is None else patience
        while True:
            try:
                told = newest.look() or await self.jobs.progress(prepared.id)
            except (ApiError, ConnectionFailed) as failed:
                if not (failed.retryable or isinstance(failed, ConnectionFailed)):
                    return None
                told = None  # a coordinator that is away for a while is what waiting is for
            if told is not None:
                require_posted(told)
                changes.status = told.status
                job = job_of(prepared, told)
                seen(job)
                if job.ended and not told.provisional:
                    return None
                if job.result_cid is not None:
                    result = await self._opened(prepared, job, told)
                    # None: no more of them are asked for. Else it holds, unless it was taken back meanwhile.
                    if result is None or newest.told is None or _cid_of(prepared, newest.told) == job.result_cid:
                        return result
            left = began + most - anyio.current_time()
            if left <= 0:
                raise WaitTimedOut(f"job {prepared.id}", most)
            if newest.told is None:
                await changes.pause(min(pause, left), min(QUIET, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def _opened(self, prepared: PreparedOrder, job: Job, told: Progress) -> Result | None:
        """None where it is not to be had, or does not open: then the chain's is waited for."""

        async def confirm(result: Result, patience: float | None) -> Result:
            return await self._settled(prepared, result, patience)

        try:
            result = await self.results.open(job)
        except ResultUnreadable:
            return None
        rests_on = next(step.rests_on for step in told.steps if step.op == "settle")
        return attrs.evolve(result, rests_on=rests_on, provisional=True, confirm=confirm)

    async def _settled(self, prepared: PreparedOrder, result: Result, patience: float | None) -> Result:
        try:
            job = await self.jobs.wait(prepared.id, timeout=patience)
        except PostRefused as refused:
            raise ResultTakenBack(prepared.id, refused.code or "refused", refused.message) from None
        require_settled(job, result.job.result_cid)
        await self.orders.require_on_chain(prepared)
        return attrs.evolve(result, job=job, rests_on="block", provisional=False, confirm=None)

    def _longest(self, prepared: PreparedOrder) -> float:
        terms = prepared.terms
        return seconds_left(self.account.transport.clock.now(), None, terms.expires_at, terms.sla_secs)


def require_settled(job: Job, result_cid: str | None) -> None:
    """Raises ResultTakenBack for a job that ended otherwise than with this result."""
    if job.status != "completed":
        because = ENDED_BECAUSE.get(job.svc.ended_because, job.status)
        raise ResultTakenBack(job.id, because, f"job {job.id} ended without a result: {because}")
    if job.result_cid != result_cid:
        message = f"job {job.id} was settled with another result, {job.result_cid}"
        raise ResultTakenBack(job.id, "other_result", message)


def job_of(prepared: PreparedOrder, told: Progress) -> Job:
    """The job as it will be once every step that is under way has taken effect. Its order is the one that was signed;
    of what the coordinator tells, only its progress is taken."""
    order, settle = prepared.sealed_order.order, _settle_of(prepared, told)
    status = told.status if told.status != "refused" else "cancelled"
    if status == "completed" and settle is None:  # by nobody who may, or for more than was ordered: not that yet
        status = "in_progress"
    state, because = _STATES[status]
    providers = [step.provider_id for step in told.steps if step.op in _OF_PROVIDERS and step.provider_id is not None]
    details = JobDetails(
        job_id=prepared.id,
        owner=hex_of(prepared.sealed_order.owner),
        model_id=order.model_id,
        sla_secs=order.sla_secs,
        rate_in=order.rate_in,
        rate_out=order.rate_out,
        units_in=order.units_in,
        units_out=order.units_out,
        designated=order.designated,
        provider_id=providers[-1] if providers and status != "queued" else 0,
        expires_at=order.expires_at,
        task_cid="",
        completion_tok=(settle.completion_tok or 0) if settle is not None else 0,
        state=state,
        ended_because=because,
    )
    cid = settle.result_cid if settle is not None else None
    return Job(prepared.id, prepared.terms.model, status, None, cid, details)


_OF_PROVIDERS: Final = frozenset({"claim", "settle"})
_STATES: Final = {
    "queued": (JobState.OPEN, EndedBecause.NOT_ENDED),
    "in_progress": (JobState.CLAIMED, EndedBecause.NOT_ENDED),
    "completed": (JobState.SETTLED, EndedBecause.SETTLE),
    "failed": (JobState.CANCELLED, EndedBecause.PROVIDER_FAIL),
    "cancelled": (JobState.CANCELLED, EndedBecause.CANCEL),
}
if set(_STATES) != LIVE_JOB | ENDED_JOB:
    raise AssertionError("each status of a job has its state")


def _settle_of(prepared: PreparedOrder, told: Progress) -> ProgressStep | None:
    """The settle that names a result, by somebody who may and for no more than was ordered."""
    terms = prepared.terms
    for step in told.steps:
        if told.status == "completed" and step.op == "settle" and step.rests_on != "refused":
            units, provider = step.completion_tok, step.provider_id
            allowed = not terms.designated or provider in (None, terms.designated)
            if allowed and step.result_cid is not None and units is not None and units <= terms.units.units_out:
                return step
    return None


def _cid_of(prepared: PreparedOrder, told: Progress) -> str | None:
    settle = _settle_of(prepared, told)
    return None if settle is None else settle.result_cid
