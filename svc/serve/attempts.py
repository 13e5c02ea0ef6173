"""Attempts of a purchase: record, post, follow, cancel or open one job, and record its cost.

An unclaimed job is cancelled when all clients have left, when another provider should be tried, or when another attempt
was faster. A claimed job continues and is paid. If all clients have left, the next identical request gets the result.
"""

import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import attrs
from anyio.abc import TaskGroup

from common import quotes
from common.daemon.supervision import Supervisor
from common.quotes import FeeTerms
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.core.quote_check import fee_terms
from svc.errors import (
    ApiError,
    ChainContradicts,
    ConnectionFailed,
    InternalError,
    JobFailed,
    NodeFailed,
    NotFound,
    PostRefused,
    ReceiptTimeout,
    SvcError,
    WaitTimedOut,
)
from svc.jobs import OnJobChange
from svc.records import CODE_BY_ENDED_BECAUSE, Job, Quoted
from svc.results import Result, provider_cost
from svc.serve.budgets import Budgets
from svc.serve.ledger import JobState, Ledger, LedgerJob, LedgerPurchase, ProvisionalResult
from svc.serve.media_answers import BoughtAnswer
from svc.serve.prices import MarketOffer, Prices
from svc.serve.problems import Problem, StorageFailed
from svc.serve.requests import AnswerRequest
from svc.serve.settings import ServeSettings
from svc.tabs.tab import TabStream

_UNKNOWN_OUTCOME_ERRORS: Final = (ConnectionFailed, ReceiptTimeout, NodeFailed, InternalError)
_SERVER_ERROR_STATUS: Final = 500
_LIMIT_ADVICE: Final = "the price rose since it was shown: request the price again, or raise x-svc-max-amount"
_RECHECK_INTERVAL_S: Final = 1.0  # pause before a job is read again
_MAX_PARALLEL_CONFIRMATIONS: Final = 64  # each confirmation keeps an event stream open
_CONFIRM_WAIT_S: Final = 15.0  # after this time, the next unconfirmed job gets its turn
_MAX_JOB_DURATION_S: Final = 3 * 86_400.0  # no job takes longer
_UNREACHABLE_RETRY_PAUSE_S: Final = 15.0
_STORAGE_RETRY_PAUSE_S: Final = 5.0


@attrs.define(eq=False)
class PurchaseContext:
    """State and services that all purchases share.

    `task_group` runs tasks until the server stops, `clock` returns Unix seconds, and `report` prints a line for the
    operator. `is_stopping` is True while the server shuts down.
    """

    client: Client
    settings: ServeSettings
    ledger: Ledger
    budgets: Budgets
    prices: Prices
    task_group: TaskGroup
    clock: Callable[[], float] = time.time
    report: Callable[[str], object] = lambda _: None
    is_stopping: bool = False
    confirmation_limit: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(_MAX_PARALLEL_CONFIRMATIONS)
    )
    supervisor: Supervisor = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: Supervisor(lambda task, number: None, self._report_failure), takes_self=True
        ),
    )

    def start_task(self, name: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start a task that outlives its request. An exception is printed and ends only this task."""
        self.task_group.start_soon(self.supervisor.run_once, name, partial(work, *arguments))

    def _report_failure(self, task: str, failures: int, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.report(f"{task} failed unexpectedly ({failures} in a row): {type(error).__name__}: {error}\n{trace}")

    async def write_until_stored(self, write: Callable[[], Awaitable[None]]) -> None:
        """Retry `write` until the disk accepts it, because a record of a payment must not be lost."""
        reported = False
        while True:
            try:
                return await write()
            except StorageFailed as failed:
                if not reported:
                    self.report(failed.message)
                    reported = True
            await anyio.sleep(_STORAGE_RETRY_PAUSE_S)


@attrs.define(eq=False)
class OpenPurchase:
    """Purchase that is running or has just ended.

    `status`: preparing, posting, then the job's status (queued, in_progress). `can_retry`: another provider may be
    tried if the chosen provider does not claim the job. `unclaimed_job_ids`: jobs cancelled because no provider claimed
    them in time. `tab_stream`: answer that a tab is streaming. `is_partly_streamed`: the client has received a part of
    this answer.
    """

    row: LedgerPurchase
    requested: AnswerRequest | None
    status: str = "preparing"
    job: LedgerJob | None = None
    answer: BoughtAnswer | None = None
    problem: Problem | None = None
    waiting_clients: int = 0
    is_abandoned: bool = False
    tried_providers: set[int] = attrs.field(factory=set)
    can_retry: bool = False
    unclaimed_job_ids: set[str] = attrs.field(factory=set)
    tab_stream: TabStream | None = None
    is_partly_streamed: bool = False
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def ended(self) -> bool:
        return self.answer is not None or self.problem is not None

    @property
    def is_posted(self) -> bool:
        return self.job is not None and self.status not in {"preparing", "posting"}

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def result(self) -> BoughtAnswer:
        """Wait for the answer. Raises Problem."""
        while not self.ended:
            await self.wait_for_change()
        if self.problem is not None:
            raise self.problem
        if self.answer is None:
            raise AssertionError("the purchase ended with neither an answer nor a problem")
        return self.answer


@attrs.frozen
class JobAttempts:
    """Posts, awaits, cancels and confirms single jobs."""

    context: PurchaseContext

    async def post(
        self, purchase: OpenPurchase, requested: AnswerRequest, offer: MarketOffer
    ) -> tuple[LedgerJob, PreparedOrder]:
        """Record the job in the ledger, then post it. Return the job and its order."""
        orders = self.context.client.orders
        prepared = await orders.prepare_for(requested.to_order_request(), requested.model, offer.bid, offer.recipient)
        quoted = await self.context.prices.quote(prepared)
        amount = quoted.quote.amount
        ceiling = await orders.account.order_ceiling(self.context.settings.budget.per_request)
        ceiling.check(amount, "the request")
        if requested.max_amount is not None:
            limit = attrs.evolve(ceiling, max_amount=requested.max_amount, is_default=False, advice=_LIMIT_ADVICE)
            limit.check(amount, "the request")
        self.context.budgets.reserve(purchase.row.key, prepared.id, amount, self.context.clock())
        job = LedgerJob(
            prepared.id, purchase.row.id, self.context.clock(), offer.provider, amount, fee_terms(quoted.quote)
        )
        try:
            await self.context.ledger.add_job(job)
        except BaseException:
            self.context.budgets.settle(prepared.id, 0, self.context.clock())
            raise
        purchase.job, purchase.status = job, "posting"
        job = purchase.job = await self._submit(purchase, prepared, quoted, job)
        purchase.status = "queued"
        purchase.notify()
        return job, prepared

    async def _submit(
        self, purchase: OpenPurchase, prepared: PreparedOrder, quoted: Quoted, job: LedgerJob
    ) -> LedgerJob:
        """Submit the order. Return the job with the amount that was posted, which is lower if the charges fell."""
        try:
            final = self.context.settings.buying.final
            submitted = await self.context.client.submit(prepared, quoted, max_amount=job.amount, final=final)
        except ChainContradicts:
            self.context.start_task("accounting", self.record_cost, purchase, job)
            raise
        except SvcError as error:
            if may_have_been_accepted(error):
                return job  # the job may have been posted, so wait for it
            await self._record_job_end(job, 0, paid=False)
            raise
        return job if submitted.amount == job.amount else await self._requote(prepared, job, submitted.amount)

    async def _requote(self, prepared: PreparedOrder, job: LedgerJob, amount: int) -> LedgerJob:
        """Quote the order again, and return the job.

        If the new quote has the posted amount, its charges are stored with the job.
        """
        self.context.prices.forget_fee_terms()
        try:
            quoted = await self.context.prices.quote(prepared)
        except SvcError:
            return job  # the cost is then recorded slightly too high
        if quoted.quote.amount != amount:
            return job
        job = attrs.evolve(job, amount=amount, terms=fee_terms(quoted.quote))
        self.context.budgets.settle(job.job_id, amount, self.context.clock())
        await self.context.ledger.update_job_terms(job.job_id, job.created_at, amount, job.terms)
        return job

    async def wait_and_open(
        self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None
    ) -> BoughtAnswer:
        """Wait for the job and open its result.

        `prepared` is the order if this run posted it. After a restart, `prepared` is None, and the answer is returned
        only after the chain has settled the job.
        """
        found = await self._wait_for_outcome(purchase, job, prepared)
        if isinstance(found, Result):
            return await self._store_provisional(purchase, job, found, prepared)
        return await self.open_result(job, found)

    async def _wait_for_outcome(
        self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None
    ) -> Result | Job:
        """Return a provisional result, or the settled job after recording its cost.

        Raises JobFailed if the job ended without a payment.
        """
        statuses: list[str] = []
        load, started = self.context.prices.load, anyio.current_time()

        def on_change(current: Job) -> None:
            if current.status == "in_progress" and "in_progress" not in statuses:
                load.on_claimed(job.provider, anyio.current_time() - started if prepared is not None else None)
            statuses.append(current.status)
            purchase.status = current.status
            purchase.notify()

        watch_scope = anyio.CancelScope()
        self.context.start_task("cancelling", self._cancel_unclaimed, purchase, job, statuses, watch_scope)
        provisional_order = None if self.context.settings.buying.final else prepared
        try:
            ended = await self._wait_for_job(job, statuses, on_change, provisional_order)
        except PostRefused:
            await self._record_job_end(job, 0, paid=False)
            raise
        finally:
            watch_scope.cancel()
            load.on_ended(job.provider, claimed="in_progress" in statuses)
        if isinstance(ended, Result):
            return ended
        if ended is None:
            await self._record_job_end(job, 0, paid=False)
            raise JobFailed(job.job_id, "expired")
        if ended.status != "completed":
            await self._record_job_end(job, 0, paid=False)
            raise JobFailed(ended.id, CODE_BY_ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
        await self._record_job_end(job, total_cost(ended, job.terms), paid=True)
        return ended

    async def _wait_for_job(
        self, job: LedgerJob, statuses: list[str], on_change: OnJobChange, provisional_order: PreparedOrder | None
    ) -> Result | Job | None:
        """Return the ended job, a provisional result, or None if the job was never posted.

        A provisional result is returned only for `provisional_order`, if set. While the coordinator does not answer,
        wait, because the job may be running.
        """
        while True:
            try:
                if provisional_order is not None:
                    return await self.context.client.first_result(provisional_order, on_change=on_change)
                return await self.context.client.wait(job.job_id, on_change=on_change)
            except WaitTimedOut:
                pass
            try:
                await self.context.client.jobs.get(job.job_id)
            except NotFound:
                if not statuses:
                    return None
            except SvcError as error:
                if not error.retryable:
                    raise
            await anyio.sleep(_UNREACHABLE_RETRY_PAUSE_S)

    async def open_result(self, job: LedgerJob, ended: Job) -> BoughtAnswer:
        result = await self.context.client.open(ended)
        cost = total_cost(ended, job.terms)
        provider = ended.svc.provider_id
        return BoughtAnswer(
            job.job_id, provider, job.amount, cost, job.terms, int(job.created_at), result.output, result.usage
        )

    async def _store_provisional(
        self, purchase: OpenPurchase, job: LedgerJob, result: Result, prepared: PreparedOrder | None
    ) -> BoughtAnswer:
        """Record a provisional answer and return it.

        The authorised amount stays reserved until the chain settles the job.
        """
        provider, cost = result.job.svc.provider_id or job.provider, total_cost(result.job, job.terms)
        provisional = ProvisionalResult(result.job.result_cid or "", provider, cost)
        await self.context.write_until_stored(
            lambda: self.context.ledger.store_provisional(job, purchase.row.key, provisional)
        )
        self.context.start_task("confirming", self.confirm, job, prepared)
        at, rests_on = int(job.created_at), result.rests_on
        return BoughtAnswer(
            job.job_id, provider, job.amount, cost, job.terms, at, result.output, result.usage, rests_on
        )

    async def read_provisional_again(self, job: LedgerJob, provisional: ProvisionalResult) -> BoughtAnswer:
        """Read a provisional answer again by its content id, even if the chain has rejected the answer since."""
        body = await self.context.client.results.read(job.job_id, provisional.result_cid)
        rests_on = "stored" if job.state == "given" else None
        cost = provisional.cost if job.cost is None else job.cost
        at = int(job.created_at)
        return BoughtAnswer(
            job.job_id, provisional.provider, job.amount, cost, job.terms, at, body.output, body.usage, rests_on
        )

    async def confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        """Record how the chain settled a provisional answer.

        Never raises. After a failure, the next start of the server tries again.
        """
        try:
            await self._confirm(job, prepared)
        except Exception as error:
            self.context.report(
                f"job {job.job_id}: cannot confirm the provisional answer: {type(error).__name__}: {error}"
            )

    async def _confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        provisional = await self.context.ledger.get_provisional_result(job.job_id)
        try:
            ended = await self._wait_until_ended_on_chain(job)
        except PostRefused as refused:
            await self._record_refund(job, refused.code or "refused")
            return
        if ended is None:
            await self._record_refund(job, "expired")
            return
        if ended.status != "completed":
            await self._record_refund(job, CODE_BY_ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
            return
        if provisional is not None and provisional.result_cid != ended.result_cid:
            self.context.report(
                f"job {job.job_id}: the settled result differs from the provisional answer already returned"
            )
        await self._record_job_end(job, total_cost(ended, job.terms), paid=True)
        if prepared is not None:
            await self.context.client.orders.confirm_on_chain(prepared)

    async def _wait_until_ended_on_chain(self, job: LedgerJob) -> Job | None:
        """Return the ended job, or None if the job was never posted to the chain.

        Jobs take turns, because `confirmation_limit` caps the number of jobs that wait at the same time.
        """
        while True:
            async with self.context.confirmation_limit:
                with suppress(WaitTimedOut):
                    return await self.context.client.wait(job.job_id, timeout=_CONFIRM_WAIT_S)
            if self.context.clock() - job.created_at > _MAX_JOB_DURATION_S:
                try:
                    await self.context.client.jobs.get(job.job_id)
                except NotFound:
                    return None
                except SvcError as error:
                    if not error.retryable:
                        raise
            await anyio.sleep(_RECHECK_INTERVAL_S)

    async def _record_refund(self, job: LedgerJob, reason: str) -> None:
        self.context.budgets.settle(job.job_id, 0, self.context.clock())
        await self.context.write_until_stored(lambda: self.context.ledger.mark_refunded(job.job_id))
        self.context.report(
            f"job {job.job_id}: the provisional answer was not settled ({reason}); nothing was paid for it"
        )

    async def _record_job_end(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        self.context.budgets.settle(job.job_id, cost, self.context.clock())
        state: JobState = "done" if paid else "unpaid"
        await self.context.write_until_stored(lambda: self.context.ledger.record_job_end(job.job_id, state, cost))

    async def record_cost(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a job that no client waits for.

        Never raises. After a failure, the next start of the server tries again.
        """
        self.context.prices.load.on_chosen(job.provider)
        try:
            await self._wait_for_outcome(OpenPurchase(purchase.row, None, is_abandoned=True), job, None)
        except SvcError as error:
            self.context.report(f"job {job.job_id}: {error.message}")
        except Exception as error:
            self.context.report(f"job {job.job_id}: {type(error).__name__}: {error}")

    async def _cancel_unclaimed(
        self, purchase: OpenPurchase, job: LedgerJob, statuses: list[str], watch_scope: anyio.CancelScope
    ) -> None:
        """Cancel an unclaimed job when no client waits for the answer, or when another provider should be tried."""
        started = anyio.current_time()
        usual_wait, max_wait = (
            self.context.prices.load.claim_timeout(job.provider),
            self.context.settings.buying.claim_seconds,
        )
        with watch_scope:
            while True:
                if statuses and statuses[-1] != "queued":  # keep watching: a claim that is in no block yet may fail
                    await purchase.wait_for_change()
                    continue
                waited_seconds = anyio.current_time() - started
                unwanted = purchase.is_abandoned or purchase.ended
                if unwanted or (
                    waited_seconds >= usual_wait
                    and self._has_alternative(purchase, job, with_room=waited_seconds < max_wait)
                ):
                    if not unwanted:
                        purchase.unclaimed_job_ids.add(job.job_id)
                    try:
                        await self.context.client.cancel(job.job_id)
                        return
                    except NotFound:
                        await anyio.sleep(_RECHECK_INTERVAL_S)
                    except SvcError as refused:
                        if not refused.retryable:
                            return  # the job is claimed, so it cannot be cancelled
                        await anyio.sleep(_RECHECK_INTERVAL_S)
                    continue
                remaining_seconds = next(
                    (each - waited_seconds for each in (usual_wait, max_wait) if each > waited_seconds), usual_wait
                )
                with anyio.move_on_after(remaining_seconds):
                    await purchase.wait_for_change()

    def _has_alternative(self, purchase: OpenPurchase, job: LedgerJob, *, with_room: bool) -> bool:
        """Return True if another provider may be tried and accepts the job. With `with_room`, require free capacity."""
        requested = purchase.requested
        if requested is None or not purchase.can_retry:
            return False
        others = self.context.prices.other_providers(
            requested.model, requested.rule, {job.provider, *purchase.tried_providers}
        )
        return self.context.prices.load.has_room(others) if with_room else bool(others)


def may_have_been_accepted(error: SvcError) -> bool:
    """Return True if the request may have been accepted in spite of this error."""
    fault = isinstance(error, ApiError) and error.status >= _SERVER_ERROR_STATUS and not error.retryable
    return fault or isinstance(error, _UNKNOWN_OUTCOME_ERRORS)


def total_cost(job: Job, terms: FeeTerms) -> int:
    """Return the cost of a settled job: the provider's pay, the fee on this pay, and the relay charge."""
    return quotes.cost_parts(provider_cost(job), terms).total
