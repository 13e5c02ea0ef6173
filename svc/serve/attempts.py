"""Attempts of a purchase: record, post, follow, cancel or open one job, and record its cost.

An unclaimed job is cancelled when all clients have left, when another provider should be tried, or when another attempt
was faster. A claimed job continues and is paid. If no client waits for its result, the next
identical request gets it.
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

_UNCERTAIN_ERRORS: Final = (ConnectionFailed, ReceiptTimeout, NodeFailed, InternalError)
_SERVER_ERROR_STATUS: Final = 500
_LIMIT_ADVICE: Final = "the price rose since it was shown: request the price again, or raise x-svc-max-amount"
_RECHECK_INTERVAL_S: Final = 1.0  # pause before a job is read again
_MAX_CONFIRMATIONS: Final = 64  # each confirmation keeps an event stream open
_CONFIRM_TURN_S: Final = 15.0  # a job waits for this long before the next job may use its place
_MAX_JOB_DURATION_S: Final = 3 * 86_400.0  # longer than any job can take
_UNREACHABLE_RETRY_PAUSE_S: Final = 15.0
_STORAGE_RETRY_PAUSE_S: Final = 5.0


@attrs.define(eq=False)
class Trade:
    """State and services that all purchases share.

    `tasks` runs work until the server stops, `clock` returns Unix seconds, and `report` prints a line for the operator.
    `stopping` is True while the server shuts down.
    """

    client: Client
    settings: ServeSettings
    ledger: Ledger
    budgets: Budgets
    prices: Prices
    tasks: TaskGroup
    clock: Callable[[], float] = time.time
    report: Callable[[str], object] = lambda _: None
    stopping: bool = False
    confirmation_limit: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_MAX_CONFIRMATIONS))
    supervisor: Supervisor = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: Supervisor(lambda task, number: None, self._report_failure), takes_self=True
        ),
    )

    def start(self, task: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start work that outlives its request. An exception is printed and ends only this work."""
        self.tasks.start_soon(self.supervisor.run_once, task, partial(work, *arguments))

    def _report_failure(self, task: str, failures: int, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.report(f"{task} failed unexpectedly ({failures} in a row): {type(error).__name__}: {error}\n{trace}")

    async def persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Retry a write until the disk accepts it. The write records a payment, so it must not be lost."""
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

    `status`: preparing, posting, then the job's status (queued, in_progress). `waiting`: number of clients that wait.
    `tried`: providers that were tried. `can_retry`: another provider may be tried if this one does not claim the job.
    `unclaimed`: jobs cancelled because their provider did not claim them in time. `stream`: answer that a tab is
    streaming. `streamed`: the client has received a part of this answer.
    """

    row: LedgerPurchase
    requested: AnswerRequest | None
    status: str = "preparing"
    job: LedgerJob | None = None
    bought: BoughtAnswer | None = None
    problem: Problem | None = None
    waiting: int = 0
    abandoned: bool = False
    tried: set[int] = attrs.field(factory=set)
    can_retry: bool = False
    unclaimed: set[str] = attrs.field(factory=set)
    stream: TabStream | None = None
    streamed: bool = False
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def ended(self) -> bool:
        return self.bought is not None or self.problem is not None

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
        if self.bought is None:
            raise AssertionError("the purchase ended with neither an answer nor a problem")
        return self.bought


@attrs.frozen
class JobAttempts:
    """Posts, follows, cancels and confirms single jobs."""

    trade: Trade

    async def post(
        self, purchase: OpenPurchase, requested: AnswerRequest, offer: MarketOffer
    ) -> tuple[LedgerJob, PreparedOrder]:
        """Record the job in the ledger, then post it. Return the job and its order."""
        orders = self.trade.client.orders
        prepared = await orders.prepare_for(requested.order(), requested.model, offer.bid, offer.recipient)
        quoted = await self.trade.prices.quote(prepared)
        amount = quoted.quote.amount
        ceiling = await orders.account.order_ceiling(self.trade.settings.budget.per_request)
        ceiling.check(amount, "the request")
        if requested.max_amount is not None:
            limit = attrs.evolve(ceiling, max_amount=requested.max_amount, is_default=False, advice=_LIMIT_ADVICE)
            limit.check(amount, "the request")
        self.trade.budgets.reserve(purchase.row.key, prepared.id, amount, self.trade.clock())
        job = LedgerJob(
            prepared.id, purchase.row.id, self.trade.clock(), offer.provider, amount, fee_terms(quoted.quote)
        )
        try:
            await self.trade.ledger.add_job(job)
        except BaseException:
            self.trade.budgets.settle(prepared.id, 0, self.trade.clock())
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
            final = self.trade.settings.buying.final
            submitted = await self.trade.client.submit(prepared, quoted, max_amount=job.amount, final=final)
        except ChainContradicts:
            self.trade.start("accounting", self.record_cost, purchase, job)
            raise
        except SvcError as error:
            if may_have_arrived(error):
                return job  # the job may have been posted, so wait for it
            await self._end_job(job, 0, paid=False)
            raise
        return job if submitted.amount == job.amount else await self._requote(prepared, job, submitted.amount)

    async def _requote(self, prepared: PreparedOrder, job: LedgerJob, amount: int) -> LedgerJob:
        """Quote the order again, and return the job.

        If the new quote has the posted amount, its charges are stored with the job.
        """
        self.trade.prices.forget_charges()
        try:
            quoted = await self.trade.prices.quote(prepared)
        except SvcError:
            return job  # the recorded cost of the job is then slightly too high
        if quoted.quote.amount != amount:
            return job
        job = attrs.evolve(job, amount=amount, terms=fee_terms(quoted.quote))
        self.trade.budgets.settle(job.job_id, amount, self.trade.clock())
        await self.trade.ledger.renew_job(job.job_id, job.at, amount, job.terms)
        return job

    async def follow(self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None) -> BoughtAnswer:
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
        seen: list[str] = []
        load, started = self.trade.prices.load, anyio.current_time()

        def on_change(found: Job) -> None:
            if found.status == "in_progress" and "in_progress" not in seen:
                load.on_claimed(job.provider, anyio.current_time() - started if prepared is not None else None)
            seen.append(found.status)
            purchase.status = found.status
            purchase.notify()

        cancel_watch = anyio.CancelScope()
        self.trade.start("cancelling", self._cancel_unclaimed, purchase, job, seen, cancel_watch)
        early = None if self.trade.settings.buying.final else prepared
        try:
            ended = await self._wait_for_job(job, seen, on_change, early)
        except PostRefused:
            await self._end_job(job, 0, paid=False)
            raise
        finally:
            cancel_watch.cancel()
            load.on_ended(job.provider, claimed="in_progress" in seen)
        if isinstance(ended, Result):
            return ended
        if ended is None:
            await self._end_job(job, 0, paid=False)
            raise JobFailed(job.job_id, "expired")
        if ended.status != "completed":
            await self._end_job(job, 0, paid=False)
            raise JobFailed(ended.id, CODE_BY_ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
        await self._end_job(job, total_cost(ended, job.terms), paid=True)
        return ended

    async def _wait_for_job(
        self, job: LedgerJob, seen: list[str], on_change: OnJobChange, early: PreparedOrder | None
    ) -> Result | Job | None:
        """Return the ended job, a provisional result, or None if the job was never posted.

        `early` is the order whose provisional result may be returned. If `early` is None, wait for the chain. Only an
        answer of the coordinator shows that a job was never posted. Without an answer, the job may be running.
        """
        while True:
            try:
                if early is not None:
                    return await self.trade.client.first_result(early, on_change=on_change)
                return await self.trade.client.wait(job.job_id, on_change=on_change)
            except WaitTimedOut:
                pass
            try:
                await self.trade.client.jobs.get(job.job_id)
            except NotFound:
                if not seen:
                    return None
            except SvcError as error:
                if not error.retryable:
                    raise
            await anyio.sleep(_UNREACHABLE_RETRY_PAUSE_S)

    async def open_result(self, job: LedgerJob, ended: Job) -> BoughtAnswer:
        result = await self.trade.client.open(ended)
        cost = total_cost(ended, job.terms)
        provider = ended.svc.provider_id
        return BoughtAnswer(job.job_id, provider, job.amount, cost, job.terms, int(job.at), result.output, result.usage)

    async def _store_provisional(
        self, purchase: OpenPurchase, job: LedgerJob, result: Result, prepared: PreparedOrder | None
    ) -> BoughtAnswer:
        """Record a provisional answer and return it.

        The authorised amount stays reserved until the chain settles the job.
        """
        provider, cost = result.job.svc.provider_id or job.provider, total_cost(result.job, job.terms)
        provisional = ProvisionalResult(result.job.result_cid or "", provider, cost)
        await self.trade.persist(lambda: self.trade.ledger.store_provisional(job, purchase.row.key, provisional))
        self.trade.start("confirming", self.confirm, job, prepared)
        at, rests_on = int(job.at), result.rests_on
        return BoughtAnswer(
            job.job_id, provider, job.amount, cost, job.terms, at, result.output, result.usage, rests_on
        )

    async def reopen_provisional(self, job: LedgerJob, provisional: ProvisionalResult) -> BoughtAnswer:
        """Read a provisional answer again by its content id, even if the chain has rejected the answer since."""
        body = await self.trade.client.results.read(job.job_id, provisional.result_cid)
        rests_on = "stored" if job.state == "given" else None
        cost = provisional.cost if job.cost is None else job.cost
        at = int(job.at)
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
            self.trade.report(
                f"job {job.job_id}: cannot confirm the provisional answer: {type(error).__name__}: {error}"
            )

    async def _confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        provisional = await self.trade.ledger.provisional_result(job.job_id)
        try:
            ended = await self._wait_for_final(job)
        except PostRefused as refused:
            await self._refund_job(job, refused.code or "refused")
            return
        if ended is None:
            await self._refund_job(job, "expired")
            return
        if ended.status != "completed":
            await self._refund_job(job, CODE_BY_ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
            return
        if provisional is not None and provisional.result_cid != ended.result_cid:
            self.trade.report(
                f"job {job.job_id}: the settled result differs from the provisional answer already returned"
            )
        await self._end_job(job, total_cost(ended, job.terms), paid=True)
        if prepared is not None:
            await self.trade.client.orders.confirm_on_chain(prepared)

    async def _wait_for_final(self, job: LedgerJob) -> Job | None:
        """Return the ended job, or None if the job was never posted to the chain.

        Jobs wait in turns, because more answers can be unconfirmed than `confirmation_limit` lets wait at a time.
        """
        while True:
            async with self.trade.confirmation_limit:
                with suppress(WaitTimedOut):
                    return await self.trade.client.wait(job.job_id, timeout=_CONFIRM_TURN_S)
            if self.trade.clock() - job.at > _MAX_JOB_DURATION_S:
                try:
                    await self.trade.client.jobs.get(job.job_id)
                except NotFound:
                    return None
                except SvcError as error:
                    if not error.retryable:
                        raise
            await anyio.sleep(_RECHECK_INTERVAL_S)

    async def _refund_job(self, job: LedgerJob, because: str) -> None:
        self.trade.budgets.settle(job.job_id, 0, self.trade.clock())
        await self.trade.persist(lambda: self.trade.ledger.mark_refunded(job.job_id))
        what = f"the provisional answer was not settled ({because}); nothing was paid for it"
        self.trade.report(f"job {job.job_id}: {what}")

    async def _end_job(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        self.trade.budgets.settle(job.job_id, cost, self.trade.clock())
        state: JobState = "done" if paid else "unpaid"
        await self.trade.persist(lambda: self.trade.ledger.end_job(job.job_id, state, cost))

    async def record_cost(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a job that no client waits for.

        Never raises. After a failure, the next start of the server tries again.
        """
        self.trade.prices.load.on_chosen(job.provider)
        try:
            await self._wait_for_outcome(OpenPurchase(purchase.row, None, abandoned=True), job, None)
        except SvcError as error:
            self.trade.report(f"job {job.job_id}: {error.message}")
        except Exception as error:
            self.trade.report(f"job {job.job_id}: {type(error).__name__}: {error}")

    async def _cancel_unclaimed(
        self, purchase: OpenPurchase, job: LedgerJob, seen: list[str], cancel_watch: anyio.CancelScope
    ) -> None:
        """Cancel an unclaimed job when no client waits for the answer, or when another provider should be tried."""
        started = anyio.current_time()
        usual_wait, max_wait = (
            self.trade.prices.load.claim_timeout(job.provider),
            self.trade.settings.buying.claim_seconds,
        )
        with cancel_watch:
            while True:
                if seen and seen[-1] != "queued":  # keep watching, because a claim outside a block may still fail
                    await purchase.wait_for_change()
                    continue
                waited_seconds = anyio.current_time() - started
                unwanted = purchase.abandoned or purchase.ended
                if unwanted or (
                    waited_seconds >= usual_wait
                    and self._has_alternative(purchase, job, with_room=waited_seconds < max_wait)
                ):
                    if not unwanted:
                        purchase.unclaimed.add(job.job_id)
                    try:
                        await self.trade.client.cancel(job.job_id)
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
        others = self.trade.prices.other_providers(requested.model, requested.rule, {job.provider, *purchase.tried})
        return self.trade.prices.load.has_room(others) if with_room else bool(others)


def may_have_arrived(error: SvcError) -> bool:
    """Return True if the request may have been accepted in spite of this error."""
    fault = isinstance(error, ApiError) and error.status >= _SERVER_ERROR_STATUS and not error.retryable
    return fault or isinstance(error, _UNCERTAIN_ERRORS)


def total_cost(job: Job, terms: FeeTerms) -> int:
    """Return the cost of a settled job: the provider's pay, the fee on this pay, and the relay charge."""
    return quotes.cost_parts(provider_cost(job), terms).total
