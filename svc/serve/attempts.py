"""One job of a purchase: written down, posted, waited for, taken back while it can be, opened, and what it cost.

A job is taken back as long as nobody has claimed it: when all who asked have gone, when another provider is to be
tried, or when another attempt was faster. What is claimed is paid, and its result stays at the
gateway for whoever asks again.
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
from svc.jobs import JobSeen
from svc.records import ENDED_BECAUSE, Job, Quoted
from svc.results import Result, provider_part
from svc.serve.budgets import Budgets
from svc.serve.ledger import GivenResult, JobState, Ledger, LedgerJob, LedgerPurchase
from svc.serve.media_answers import Bought
from svc.serve.prices import MarketOffer, Prices
from svc.serve.problems import Problem, StorageFailed
from svc.serve.requests import Wanted
from svc.serve.settings import ServeSettings

_PERHAPS_POSTED: Final = (ConnectionFailed, ReceiptTimeout, NodeFailed, InternalError)
_SERVER_FAULT: Final = 500
_LOOK_SECONDS: Final = 1.0  # between attempts to take a job back that the coordinator does not know yet
_CONFIRMED_AT_ONCE: Final = 64  # given answers whose end is waited for: each holds a stream, and their callers are gone
_CONFIRM_SECONDS: Final = 15.0  # before another one has its turn
_LONGEST_SECONDS: Final = 3 * 86_400.0  # of any job, and a day: what the chain does not have by then it never will
_AWAY_SECONDS: Final = 15.0  # between looks at a coordinator that is away
_STORAGE_RETRY_SECONDS: Final = 5.0


@attrs.define(eq=False)
class Trade:
    """State and services that all purchases share. `tasks` lives as long as the server, `clock` is the time of the
    ledger, and `say` prints a line for the operator. `stopping`: the server ends the connections of its clients."""

    client: Client
    settings: ServeSettings
    ledger: Ledger
    budgets: Budgets
    prices: Prices
    tasks: TaskGroup
    clock: Callable[[], float] = time.time
    say: Callable[[str], object] = lambda _: None
    stopping: bool = False
    confirming: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_CONFIRMED_AT_ONCE))
    supervisor: Supervisor = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Supervisor(lambda task, number: None, self._say_failure), takes_self=True),
    )

    def start(self, task: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start work that goes on without the request that began it. What it raises is printed, and ends only it."""
        self.tasks.start_soon(self.supervisor.run_once, task, partial(work, *arguments))

    def _say_failure(self, task: str, failures: int, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.say(f"{task} failed unexpectedly ({failures} in a row): {type(error).__name__}: {error}\n{trace}")

    async def persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat a write until the disk takes it. It records what was paid, so it must not be lost."""
        told = False
        while True:
            try:
                return await write()
            except StorageFailed as failed:
                if not told:
                    self.say(failed.message)
                    told = True
            await anyio.sleep(_STORAGE_RETRY_SECONDS)


@attrs.define(eq=False)
class OpenPurchase:
    """`status`: preparing, posting, then as the market has it: queued, in_progress. `waiting`: how many wait for it.
    `tried`: providers that were asked; `more`: another may be, when one of them does not claim. `unclaimed`: jobs that
    were taken back from a provider who did not claim them in time."""

    row: LedgerPurchase
    wanted: Wanted | None
    status: str = "preparing"
    job: LedgerJob | None = None
    bought: Bought | None = None
    problem: Problem | None = None
    waiting: int = 0
    abandoned: bool = False
    tried: set[int] = attrs.field(factory=set)
    more: bool = False
    unclaimed: set[str] = attrs.field(factory=set)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def ended(self) -> bool:
        return self.bought is not None or self.problem is not None

    @property
    def posted(self) -> bool:
        return self.job is not None and self.status not in {"preparing", "posting"}

    async def changed(self) -> None:
        """Until something about it has changed."""
        await self._changed.wait()

    def tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def result(self) -> Bought:
        """Raises Problem."""
        while not self.ended:
            await self.changed()
        if self.problem is not None:
            raise self.problem
        if self.bought is None:
            raise AssertionError("what has ended was bought or failed")
        return self.bought


@attrs.frozen
class JobAttempts:
    trade: Trade

    async def posted(
        self, purchase: OpenPurchase, wanted: Wanted, offer: MarketOffer
    ) -> tuple[LedgerJob, PreparedOrder]:
        """The job, written down before it is posted, and its order."""
        orders = self.trade.client.orders
        prepared = await orders.prepare_for(wanted.order(), wanted.model, offer.bid, offer.recipient)
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
        purchase.tell()
        return job, prepared

    async def _submit(
        self, purchase: OpenPurchase, prepared: PreparedOrder, quoted: Quoted, job: LedgerJob
    ) -> LedgerJob:
        """The job as it was posted: at a lower price than was known, where the charges went down."""
        try:
            final = self.trade.settings.buying.final
            submitted = await self.trade.client.submit(prepared, quoted, max_amount=job.amount, final=final)
        except ChainContradicts:
            self.trade.start("accounting", self.account_for, purchase, job)
            raise
        except SvcError as error:
            if may_have_arrived(error):
                return job  # it is waited for; what never appears was not posted
            await self._end(job, 0, paid=False)
            raise
        return job if submitted.amount == job.amount else await self._repriced(prepared, job, submitted.amount)

    async def _repriced(self, prepared: PreparedOrder, job: LedgerJob, amount: int) -> LedgerJob:
        """With the charges that were paid, so that its cost comes out right. They are the ones that are quoted now."""
        self.trade.prices.forget_charges()
        try:
            quoted = await self.trade.prices.quote(prepared)
        except SvcError:
            return job  # it counts with a little more than it cost
        if quoted.quote.amount != amount:
            return job
        job = attrs.evolve(job, amount=amount, terms=fee_terms(quoted.quote))
        self.trade.budgets.settle(job.job_id, amount, self.trade.clock())
        await self.trade.ledger.renew_job(job.job_id, job.at, amount, job.terms)
        return job

    async def followed(self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None) -> Bought:
        """`prepared`: its order, where it was just posted; one of before a restart is answered from the chain."""
        found = await self._found(purchase, job, prepared)
        if isinstance(found, Result):
            return await self._given(purchase, job, found, prepared)
        return await self.opened(job, found)

    async def _found(self, purchase: OpenPurchase, job: LedgerJob, prepared: PreparedOrder | None) -> Result | Job:
        """A provisional result, or the settled job, with its cost in the ledger. Raises JobFailed for one that cost
        nothing."""
        seen: list[str] = []
        load, began = self.trade.prices.load, anyio.current_time()

        def changed(found: Job) -> None:
            if found.status == "in_progress" and "in_progress" not in seen:
                load.claimed(job.provider, anyio.current_time() - began if prepared is not None else None)
            seen.append(found.status)
            purchase.status = found.status
            purchase.tell()

        watch = anyio.CancelScope()
        self.trade.start("cancelling", self._take_back, purchase, job, seen, watch)
        early = None if self.trade.settings.buying.final else prepared
        try:
            ended = await self._waited(job, seen, changed, early)
        except PostRefused:
            await self._end(job, 0, paid=False)
            raise
        finally:
            watch.cancel()
            load.ended(job.provider, claimed="in_progress" in seen)
        if isinstance(ended, Result):
            return ended
        if ended is None:
            await self._end(job, 0, paid=False)
            raise JobFailed(job.job_id, "expired")
        if ended.status != "completed":
            await self._end(job, 0, paid=False)
            raise JobFailed(ended.id, ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
        await self._end(job, cost_in_all(ended, job.terms), paid=True)
        return ended

    async def _waited(
        self, job: LedgerJob, seen: list[str], changed: JobSeen, early: PreparedOrder | None
    ) -> Result | Job | None:
        """The job once it has ended, or a provisional result of its order where that is wanted; None for one that was
        never posted, which only a coordinator that answers can say: while it is away, a job may be under way, and
        paid."""
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
            await anyio.sleep(_AWAY_SECONDS)

    async def opened(self, job: LedgerJob, ended: Job) -> Bought:
        result = await self.trade.client.open(ended)
        cost = cost_in_all(ended, job.terms)
        provider = ended.svc.provider_id
        return Bought(job.job_id, provider, job.amount, cost, job.terms, int(job.at), result.output, result.usage)

    async def _given(
        self, purchase: OpenPurchase, job: LedgerJob, result: Result, prepared: PreparedOrder | None
    ) -> Bought:
        """The answer before its block: written down first; all that was authorised stays reserved until the chain says
        what was paid."""
        provider, cost = result.job.svc.provider_id or job.provider, cost_in_all(result.job, job.terms)
        given = GivenResult(result.job.result_cid or "", provider, cost)
        await self.trade.persist(lambda: self.trade.ledger.give(job, purchase.row.key, given))
        self.trade.start("confirming", self.confirmed, job, prepared)
        at, rests_on = int(job.at), result.rests_on
        return Bought(job.job_id, provider, job.amount, cost, job.terms, at, result.output, result.usage, rests_on)

    async def given_again(self, job: LedgerJob, given: GivenResult) -> Bought:
        """An answer that was given before its block, read again by its content id: the chain may not have it, or have
        refused it since, and it is not bought twice."""
        body = await self.trade.client.results.read(job.job_id, given.result_cid)
        rests_on = "stored" if job.state == "given" else None
        cost = given.cost if job.cost is None else job.cost
        at = int(job.at)
        return Bought(job.job_id, given.provider, job.amount, cost, job.terms, at, body.output, body.usage, rests_on)

    async def confirmed(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        """Book what the chain made of a given answer. Never raises: the next start takes up what is not booked."""
        try:
            await self._confirm(job, prepared)
        except Exception as error:
            self.trade.say(f"job {job.job_id}, answered before its block: {type(error).__name__}: {error}")

    async def _confirm(self, job: LedgerJob, prepared: PreparedOrder | None) -> None:
        given = await self.trade.ledger.given(job.job_id)
        try:
            ended = await self._chains_end(job)
        except PostRefused as refused:
            await self._refund(job, refused.code or "refused")
            return
        if ended is None:
            await self._refund(job, "expired")
            return
        if ended.status != "completed":
            await self._refund(job, ENDED_BECAUSE.get(ended.svc.ended_because, ended.status))
            return
        if given is not None and given.result_cid != ended.result_cid:
            self.trade.say(f"job {job.job_id}: its answer was given before its block, and another result was settled")
        await self._end(job, cost_in_all(ended, job.terms), paid=True)
        if prepared is not None:
            await self.trade.client.orders.require_on_chain(prepared)

    async def _chains_end(self, job: LedgerJob) -> Job | None:
        """The job once the chain has its end; None for one that it never had. In turns, since answers are given faster
        than blocks come."""
        while True:
            async with self.trade.confirming:
                with suppress(WaitTimedOut):
                    return await self.trade.client.wait(job.job_id, timeout=_CONFIRM_SECONDS)
            if self.trade.clock() - job.at > _LONGEST_SECONDS:
                try:
                    await self.trade.client.jobs.get(job.job_id)
                except NotFound:
                    return None
                except SvcError as error:
                    if not error.retryable:
                        raise
            await anyio.sleep(_LOOK_SECONDS)

    async def _refund(self, job: LedgerJob, because: str) -> None:
        self.trade.budgets.settle(job.job_id, 0, self.trade.clock())
        await self.trade.persist(lambda: self.trade.ledger.refund(job.job_id))
        what = f"its answer was given before its block, and came to nothing: {because}; nothing was paid for it"
        self.trade.say(f"job {job.job_id}: {what}")

    async def _end(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        self.trade.budgets.settle(job.job_id, cost, self.trade.clock())
        state: JobState = "done" if paid else "unpaid"
        await self.trade.persist(lambda: self.trade.ledger.end_job(job.job_id, state, cost))

    async def account_for(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a job that no client waits for any more. Never raises: the next start resumes it."""
        self.trade.prices.load.chosen(job.provider)
        try:
            await self._found(OpenPurchase(purchase.row, None, abandoned=True), job, None)
        except SvcError as error:
            self.trade.say(f"job {job.job_id}: {error.message}")
        except Exception as error:
            self.trade.say(f"job {job.job_id}: {type(error).__name__}: {error}")

    async def _take_back(
        self, purchase: OpenPurchase, job: LedgerJob, seen: list[str], watch: anyio.CancelScope
    ) -> None:
        """Cancel the job while nobody has claimed it, once it is not wanted or not wanted there."""
        began = anyio.current_time()
        soon, late = self.trade.prices.load.patience(job.provider), self.trade.settings.buying.claim_seconds
        with watch:
            while True:
                if seen and seen[-1] != "queued":  # a claim that is in no block yet may come to nothing
                    await purchase.changed()
                    continue
                waited = anyio.current_time() - began
                unwanted = purchase.abandoned or purchase.ended
                if unwanted or (waited >= soon and self._elsewhere(purchase, job, with_room=waited < late)):
                    if not unwanted:
                        purchase.unclaimed.add(job.job_id)
                    try:
                        await self.trade.client.cancel(job.job_id)
                        return
                    except NotFound:
                        await anyio.sleep(_LOOK_SECONDS)
                    except SvcError as refused:
                        if not refused.retryable:
                            return  # it is claimed
                        await anyio.sleep(_LOOK_SECONDS)
                    continue
                left = next((each - waited for each in (soon, late) if each > waited), soon)
                with anyio.move_on_after(left):
                    await purchase.changed()

    def _elsewhere(self, purchase: OpenPurchase, job: LedgerJob, *, with_room: bool) -> bool:
        """Somebody else may be asked, and would take it."""
        wanted = purchase.wanted
        if wanted is None or not purchase.more:
            return False
        others = self.trade.prices.others(wanted.model, wanted.rule, {job.provider, *purchase.tried})
        return self.trade.prices.load.has_room(others) if with_room else bool(others)


def may_have_arrived(error: SvcError) -> bool:
    """What was posted may have been taken all the same: it is looked for before it is posted again."""
    fault = isinstance(error, ApiError) and error.status >= _SERVER_FAULT and not error.retryable
    return fault or isinstance(error, _PERHAPS_POSTED)


def cost_in_all(job: Job, terms: FeeTerms) -> int:
    """Return what a settled job cost its owner: the provider's pay, the fee on it, and the relay charge."""
    return quotes.cost_parts(provider_part(job), terms).total
