"""Attempts of a purchase: record, post, follow, cancel or open one job, and record its cost.

A job is cancelled, as long as no provider has claimed it, when all clients have left, when another provider should be
tried, or when another attempt was faster. A claimed job is paid; its result stays at the gateway for the next identical
request.
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
from svc.records import ENDED_BECAUSE, Job, Quoted
from svc.results import Result, provider_cost
from svc.serve.budgets import Budgets
from svc.serve.ledger import JobState, Ledger, LedgerJob, LedgerPurchase, ProvisionalResult
from svc.serve.media_answers import Bought
from svc.serve.prices import MarketOffer, Prices
from svc.serve.problems import Problem, StorageFailed
from svc.serve.requests import AnswerRequest
from svc.serve.settings import ServeSettings

_UNCERTAIN_ERRORS: Final = (ConnectionFailed, ReceiptTimeout, NodeFailed, InternalError)
_SERVER_ERROR_STATUS: Final = 500
_RECHECK_SECONDS: Final = 1.0  # before another look at a job
_MAX_CONFIRMATIONS: Final = 64  # each confirmation holds an event stream
_CONFIRM_TURN_SECONDS: Final = 15.0  # then another job has its turn
_MAX_JOB_SECONDS: Final = 3 * 86_400.0  # longer than any job can take
_UNREACHABLE_RETRY_S: Final = 15.0
_STORAGE_RETRY_SECONDS: Final = 5.0


@attrs.define(eq=False)
class Trade:
    """State and services that all purchases share.

    `tasks` lives as long as the server, `clock` is the ledger's time, and `report` prints a line for the operator.
    `stopping`: the server closes its connections.
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
    confirming: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_MAX_CONFIRMATIONS))
    supervisor: Supervisor = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Supervisor(lambda task, number: None, self._say_failure), takes_self=True),
    )

    def start(self, task: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start work that outlives its request. An exception is printed and ends only this work."""
        self.tasks.start_soon(self.supervisor.run_once, task, partial(work, *arguments))

    def _say_failure(self, task: str, failures: int, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.report(f"{task} failed unexpectedly ({failures} in a row): {type(error).__name__}: {error}\n{trace}")

    async def persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat a write until the disk accepts it. The write records a payment, so it must not be lost."""
        reported = False
        while True:
            try:
                return await write()
            except StorageFailed as failed:
                if not reported:
                    self.report(failed.message)
                    reported = True
            await anyio.sleep(_STORAGE_RETRY_SECONDS)


@attrs.define(eq=False)
class OpenPurchase:
    """Purchase that is running or has just ended.

    `status`: preparing, posting, then the job's status (queued, in_progress). `waiting`: number of clients that wait.
    `tried`: providers that were tried. `can_retry`: another provider may be tried if none claims. `unclaimed`: jobs
    cancelled because their provider did not claim them in time.
    """

    row: LedgerPurchase
    requested: AnswerRequest | None
    status: str = "preparing"
    job: LedgerJob | None = None
    bought: Bought | None = None
    problem: Problem | None = None
    waiting: int = 0
    abandoned: bool = False
    tried: set[int] = attrs.field(factory=set)
    can_retry: bool = False
    unclaimed: set[str] = attrs.field(factory=set)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def ended(self) -> bool:
        return self.bought is not None or self.problem is not None

    @property
    def is_posted(self) -> bool:
        return self.job is not None and self.status not in {"preparing", "posting"}

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def result(self) -> Bought:
        """Wait for the answer. Raises Problem."""
        while not self.ended:
            await self.changed()
        if self.problem is not None:
            raise self.problem
        if self.bought is None:
            raise AssertionError("a purchase ends with an answer or a problem")
        return self.bought


@attrs.frozen
class JobAttempts:
    """Steps of one job."""

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
                return job  # wait for the job: it may have been posted
            await self._end(job, 0, paid=False)
            raise
        return job if submitted.amount == job.amount else await self._repriced(prepared, job, submitted.amount)

    async def _repriced(self, prepared: PreparedOrder, job: LedgerJob, amount: int) -> LedgerJob:
        """Return the job with the charges that were paid, which are the current ones."""
        self.trade.prices.forget_charges()
        try:
            quoted = await self.trade.prices.quote(prepared)
        except SvcError:
            return job  # its recorded cost is then slightly too high
        if quoted.quote.amount != amount:
            return job
        job = attrs.evolve(job, amount=amount, terms=fee_terms(quoted.quote))
        self.trade.budgets.settle(job.job_id, amount, self.trade.clock())
        await self.trade.ledger.renew_job(job.job_id, job.at, amount, job.terms)
        return job

    async def follow(self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None) -> Bought:
        """Wait for the job and open its result.

        `prepared` is the order if it was just posted. Without it, after a restart, the answer waits for the chain.
        """
        found = await self._wait_for_outcome(purchase, job, prepared)
        if isinstance(found, Result):
            return await self._store_provisional(purchase, job, found, prepared)
        return await self.open_result(job, found)

    async def _wait_for_outcome(
        self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None
    ) -> Result | Job:
        """Return a provisional result, or the settled job with its cost recorded.

        Raises JobFailed if the job ended without a payment.
        """
        seen: list[str] = []
        load, started = self.trade.prices.load, anyio.current_time()

        def changed(found: Job) -> None:
            if found.status == "in_progress" and "in_progress" not in seen:
                load.on_claimed(job.provider, anyio.current_time() - started if prepared is not None else None)
            seen.append(found.status)
            purchase.status = found.status
            purchase.notify()

        cancel_watch = anyio.CancelScope()
        self.trade.start("cancelling", self._cancel_unclaimed, purchase, job, seen, cancel_watch)
        early = None if self.trade.settings.buying.final else prepared
        try:
            ended = await self._wait(job, seen, changed, early)
        except PostRefused:
            await self._end(job, 0, paid=False)
            raise
        finally:
            cancel_watch.cancel()
            load.on_ended(job.provider, claimed="in_progress" in seen)
        if isinstance(ended, Result):
            return ended
        if ended is None:
            await self._end(job, 0, paid=False)
            raise JobFailed(job.job_id, "expired")
        if ended.status != "completed":
            await self._end(job, 0, paid=False)
            raise JobFailed(ended.id, ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
        await self._end(job, total_cost(ended, job.terms), paid=True)
        return ended

    async def _wait(
        self, job: LedgerJob, seen: list[str], changed: OnJobChange, early: PreparedOrder | None
    ) -> Result | Job | None:
        """Return the ended job, a provisional result of its order (`early`), or None if the job was never posted.

        Only a coordinator that answers can show that a job was never posted. An unreachable one may be running it.
        """
        while True:
            try:
                if early is not None:
                    return await self.trade.client.first_result(early, on_change=changed)
                return await self.trade.client.wait(job.job_id, on_change=changed)
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
            await anyio.sleep(_UNREACHABLE_RETRY_S)

    async def open_result(self, job: LedgerJob, ended: Job) -> Bought:
        result = await self.trade.client.open(ended)
        cost = total_cost(ended, job.terms)
        provider = ended.svc.provider_id
        return Bought(job.job_id, provider, job.amount, cost, job.terms, int(job.at), result.output, result.usage)

    async def _store_provisional(
        self, purchase: OpenPurchase, job: LedgerJob, result: Result, prepared: PreparedOrder | None
    ) -> Bought:
        """Record a provisional answer and return it.

        The authorised amount stays reserved until the chain settles it.
        """
        provider, cost = result.job.svc.provider_id or job.provider, total_cost(result.job, job.terms)
        provisional = ProvisionalResult(result.job.result_cid or "", provider, cost)
        await self.trade.persist(lambda: self.trade.ledger.store_provisional(job, purchase.row.key, provisional))
        self.trade.start("confirming", self.confirm, job, prepared)
        at, rests_on = int(job.at), result.rests_on
        return Bought(job.job_id, provider, job.amount, cost, job.terms, at, result.output, result.usage, rests_on)

    async def reopen_provisional(self, job: LedgerJob, provisional: ProvisionalResult) -> Bought:
        """Read a provisional answer again by its content id. The chain may not have it, and may have refused it."""
        body = await self.trade.client.results.read(job.job_id, provisional.result_cid)
        rests_on = "stored" if job.state == "given" else None
        cost = provisional.cost if job.cost is None else job.cost
        at = int(job.at)
        return Bought(
            job.job_id, provisional.provider, job.amount, cost, job.terms, at, body.output, body.usage, rests_on
        )

    async def confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        """Record how the chain settled a provisional answer. Never raises: the next start confirms it again."""
        try:
            await self._confirm(job, prepared)
        except Exception as error:
            self.trade.report(
                f"job {job.job_id}: cannot confirm its provisional answer: {type(error).__name__}: {error}"
            )

    async def _confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        provisional = await self.trade.ledger.provisional_result(job.job_id)
        try:
            ended = await self._wait_for_final(job)
        except PostRefused as refused:
            await self._refund(job, refused.code or "refused")
            return
        if ended is None:
            await self._refund(job, "expired")
            return
        if ended.status != "completed":
            await self._refund(job, ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
            return
        if provisional is not None and provisional.result_cid != ended.result_cid:
            self.trade.report(
                f"job {job.job_id}: the settled result differs from the provisional answer already returned"
            )
        await self._end(job, total_cost(ended, job.terms), paid=True)
        if prepared is not None:
            await self.trade.client.orders.require_on_chain(prepared)

    async def _wait_for_final(self, job: LedgerJob) -> Job | None:
        """Return the ended job, or None if the chain never had it.

        Jobs wait in turns, because answers can arrive faster than blocks.
        """
        while True:
            async with self.trade.confirming:
                with suppress(WaitTimedOut):
                    return await self.trade.client.wait(job.job_id, timeout=_CONFIRM_TURN_SECONDS)
            if self.trade.clock() - job.at > _MAX_JOB_SECONDS:
                try:
                    await self.trade.client.jobs.get(job.job_id)
                except NotFound:
                    return None
                except SvcError as error:
                    if not error.retryable:
                        raise
            await anyio.sleep(_RECHECK_SECONDS)

    async def _refund(self, job: LedgerJob, because: str) -> None:
        self.trade.budgets.settle(job.job_id, 0, self.trade.clock())
        await self.trade.persist(lambda: self.trade.ledger.refund(job.job_id))
        what = f"its provisional answer was not settled ({because}); nothing was paid for it"
        self.trade.report(f"job {job.job_id}: {what}")

    async def _end(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        self.trade.budgets.settle(job.job_id, cost, self.trade.clock())
        state: JobState = "done" if paid else "unpaid"
        await self.trade.persist(lambda: self.trade.ledger.end_job(job.job_id, state, cost))

    async def record_cost(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a job that no client waits for. Never raises: the next start resumes it."""
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
        """Cancel the job while no provider has claimed it, once the answer or this provider is no longer wanted."""
        started = anyio.current_time()
        usual_wait, max_wait = (
            self.trade.prices.load.claim_timeout(job.provider),
            self.trade.settings.buying.claim_seconds,
        )
        with cancel_watch:
            while True:
                if seen and seen[-1] != "queued":  # a claim before its block may still fail
                    await purchase.changed()
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
                        await anyio.sleep(_RECHECK_SECONDS)
                    except SvcError as refused:
                        if not refused.retryable:
                            return  # already claimed
                        await anyio.sleep(_RECHECK_SECONDS)
                    continue
                remaining_seconds = next(
                    (each - waited_seconds for each in (usual_wait, max_wait) if each > waited_seconds), usual_wait
                )
                with anyio.move_on_after(remaining_seconds):
                    await purchase.changed()

    def _has_alternative(self, purchase: OpenPurchase, job: LedgerJob, *, with_room: bool) -> bool:
        """Return True if another provider may be tried and would accept the job."""
        requested = purchase.requested
        if requested is None or not purchase.can_retry:
            return False
        others = self.trade.prices.alternatives(requested.model, requested.rule, {job.provider, *purchase.tried})
        return self.trade.prices.load.has_room(others) if with_room else bool(others)


def may_have_arrived(error: SvcError) -> bool:
    """Return True if the request may have been accepted in spite of this error."""
    fault = isinstance(error, ApiError) and error.status >= _SERVER_ERROR_STATUS and not error.retryable
    return fault or isinstance(error, _UNCERTAIN_ERRORS)


def total_cost(job: Job, terms: FeeTerms) -> int:
    """Return the cost of a settled job: the provider's pay, the fee on it, and the relay charge."""
    return quotes.cost_parts(provider_cost(job), terms).total
