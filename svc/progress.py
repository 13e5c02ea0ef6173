"""Follow the progress of a posted order, and open its provisional result once the coordinator has stored the settle.

    post stored ─► claim stored ─► settle stored ─► opened ─► provisional ─► confirmed by the chain: final
                                        │              │           └─► rejected by the chain: ResultTakenBack
                                        └──────────────┴─► missing or unreadable: wait for the chain

A settle is the transaction that records a job's result and pays the provider.

Progress is unverified, because only the coordinator reports it. A provisional result is checked like any other result
(content id, job key, job id in the body). So a false report can only lead to a result from someone who knows the job's
key. Such a result costs nothing, because payments are made only on the chain. `rests_on` of a provisional result says
how far the settle is, and `settled` waits for the chain.
"""

from typing import Final

import anyio
import attrs
import msgspec

from common.api.states import EndedBecause, JobState
from common.scalars import hex_of
from common.strict_json import DECODE_ERRORS
from svc.account import Account
from svc.core.orders import PreparedOrder
from svc.errors import ApiError, ConnectionFailed, PostRefused, ResultTakenBack, ResultUnreadable, WaitTimedOut
from svc.jobs import FIRST_POLL_PAUSE_S, MAX_POLL_PAUSE_S, Jobs, OnJobChange, max_remaining_s, require_posted
from svc.orders import Orders
from svc.records import (
    CODE_BY_ENDED_BECAUSE,
    ENDED_JOB_STATUSES,
    LIVE_JOB_STATUSES,
    Job,
    JobDetails,
    Progress,
    ProgressStep,
)
from svc.results import Result, Results
from svc.wire.events import STREAM_TIMEOUT_S, ChangeListener, call_without_session, open_change_listener

_PROVIDER_STEPS: Final = frozenset({"claim", "settle"})
_STATE_BY_STATUS: Final = {
    "queued": (JobState.OPEN, EndedBecause.NOT_ENDED),
    "in_progress": (JobState.CLAIMED, EndedBecause.NOT_ENDED),
    "completed": (JobState.SETTLED, EndedBecause.SETTLE),
    "failed": (JobState.CANCELLED, EndedBecause.PROVIDER_FAIL),
    "cancelled": (JobState.CANCELLED, EndedBecause.CANCEL),
}
if set(_STATE_BY_STATUS) != LIVE_JOB_STATUSES | ENDED_JOB_STATUSES:
    raise AssertionError("_STATE_BY_STATUS must contain every job status")


@attrs.define(eq=False)
class _LatestProgress:
    """Newest unread progress from a job's event stream."""

    job_id: str
    progress: Progress | None = None

    def store(self, data: bytes) -> bool:
        """Store a progress message. Return False for any other message."""
        try:
            progress = msgspec.json.decode(data, type=Progress, strict=False)
        except DECODE_ERRORS:
            return False
        if progress.job_id.lower() == self.job_id:
            self.progress = progress
        return True

    def pop(self) -> Progress | None:
        progress, self.progress = self.progress, None
        return progress


@attrs.frozen
class ProvisionalResults:
    """Follows orders and opens provisional results."""

    account: Account
    jobs: Jobs
    orders: Orders
    results: Results

    async def first_result(
        self,
        prepared: PreparedOrder,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the job continues, and may be waited for again
        on_change: OnJobChange | None = None,
    ) -> Result | Job:
        """Return the first provisional result that opens, or the ended job. Raises WaitTimedOut and PostRefused."""
        started, last_status = anyio.current_time(), [""]

        def report_change(job: Job) -> None:
            if on_change is not None and job.status != last_status[0]:
                on_change(job)
            last_status[0] = job.status

        if self.account.supports_progress is not False:
            result = await self._find_provisional(prepared, timeout, report_change)
            if result is not None:
                return result
        remaining = None if timeout is None else max(0.0, started + timeout - anyio.current_time())
        try:
            return await self.jobs.wait(prepared.id, timeout=remaining, on_change=report_change)
        except WaitTimedOut:
            if timeout is None:
                raise
            raise WaitTimedOut(f"job {prepared.id}", timeout) from None  # report the caller's whole timeout

    async def _find_provisional(
        self, prepared: PreparedOrder, timeout_seconds: float | None, on_status: OnJobChange
    ) -> Result | None:
        """Return a provisional result, or None if the caller must wait for the chain.

        Returns None if the job has ended, if progress cannot be read, or if the result cannot be opened.
        """
        latest = _LatestProgress(prepared.id)
        path = f"/v1/jobs/{prepared.id}/events?provisional=1"
        async with open_change_listener(self.account.transport, path, call_without_session, latest.store) as changes:
            changes.listen()
            return await self._poll_until_provisional(prepared, timeout_seconds, on_status, latest, changes)

    async def _poll_until_provisional(
        self,
        prepared: PreparedOrder,
        timeout_seconds: float | None,
        on_status: OnJobChange,
        latest: _LatestProgress,
        changes: ChangeListener,
    ) -> Result | None:
        started, pause = anyio.current_time(), FIRST_POLL_PAUSE_S
        max_seconds = self._max_seconds(prepared) if timeout_seconds is None else timeout_seconds
        while True:
            try:
                progress = latest.pop() or await self.jobs.progress(prepared.id)
            except (ApiError, ConnectionFailed) as error:
                if not (error.retryable or isinstance(error, ConnectionFailed)):
                    return None
                progress = None  # keep waiting while the coordinator is unreachable
            if progress is not None:
                require_posted(progress)
                changes.status = progress.status
                job = expected_job(prepared, progress)
                on_status(job)
                if job.ended and not progress.provisional:
                    return None
                if job.result_cid is not None:
                    result = await self._open(prepared, job, progress)
                    # Return the opened result, unless newer progress has withdrawn it. If the result cannot be opened,
                    # return None.
                    if (
                        result is None
                        or latest.progress is None
                        or _find_settled_cid(prepared, latest.progress) == job.result_cid
                    ):
                        return result
            remaining = started + max_seconds - anyio.current_time()
            if remaining <= 0:
                raise WaitTimedOut(f"job {prepared.id}", max_seconds)
            if latest.progress is None:
                await changes.pause(min(pause, remaining), min(STREAM_TIMEOUT_S, remaining))
            pause = min(pause * 1.5, MAX_POLL_PAUSE_S)

    async def _open(self, prepared: PreparedOrder, job: Job, progress: Progress) -> Result | None:
        """Return the opened result, or None if the result is unavailable or cannot be opened."""

        async def confirm(result: Result, timeout_seconds: float | None) -> Result:
            return await self._wait_for_settle(prepared, result, timeout_seconds)

        try:
            result = await self.results.open(job)
        except ResultUnreadable:
            return None
        rests_on = next(step.rests_on for step in progress.steps if step.op == "settle")
        return attrs.evolve(result, rests_on=rests_on, provisional=True, confirm=confirm)

    async def _wait_for_settle(self, prepared: PreparedOrder, result: Result, timeout_seconds: float | None) -> Result:
        try:
            job = await self.jobs.wait(prepared.id, timeout=timeout_seconds)
        except PostRefused as error:
            raise ResultTakenBack(prepared.id, error.code or "refused", error.message) from None
        require_settled(job, result.job.result_cid)
        await self.orders.confirm_on_chain(prepared)
        return attrs.evolve(result, job=job, rests_on="block", provisional=False, confirm=None)

    def _max_seconds(self, prepared: PreparedOrder) -> float:
        terms = prepared.terms
        return max_remaining_s(self.account.transport.clock.now(), None, terms.expires_at, terms.sla_secs)


def require_settled(job: Job, result_cid: str | None) -> None:
    """Raise ResultTakenBack if the job ended without this result."""
    if job.status != "completed":
        because = CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because, job.status)
        raise ResultTakenBack(job.id, because, f"job {job.id} ended without a result: {because}")
    if job.result_cid != result_cid:
        message = f"the chain settled job {job.id} with another result ({job.result_cid})"
        raise ResultTakenBack(job.id, "other_result", message)


def expected_job(prepared: PreparedOrder, progress: Progress) -> Job:
    """Return the job as it will be once all steps of the progress are mined.

    The terms come from the signed order. Only the status and the result come from the coordinator.
    """
    order, settle = prepared.sealed_order.order, _find_settle(prepared, progress)
    status = progress.status if progress.status != "refused" else "cancelled"
    if status == "completed" and settle is None:  # the settle is by another provider or charges too much
        status = "in_progress"
    state, because = _STATE_BY_STATUS[status]
    providers = [
        step.provider_id for step in progress.steps if step.op in _PROVIDER_STEPS and step.provider_id is not None
    ]
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


def _find_settle(prepared: PreparedOrder, progress: Progress) -> ProgressStep | None:
    """Return the settle step, if its provider may settle the job and its charge is within the order's limit."""
    terms = prepared.terms
    for step in progress.steps:
        if progress.status == "completed" and step.op == "settle" and step.rests_on != "refused":
            units, provider = step.completion_tok, step.provider_id
            allowed = not terms.designated or provider in (None, terms.designated)
            if allowed and step.result_cid is not None and units is not None and units <= terms.units.units_out:
                return step
    return None


def _find_settled_cid(prepared: PreparedOrder, progress: Progress) -> str | None:
    settle = _find_settle(prepared, progress)
    return None if settle is None else settle.result_cid
