"""Open, share, renew and settle the tabs of `svc serve`, and account for each request in a tab.

A tab is one job that answers many requests. A tab is opened at the second request to a model within a minute (`auto`)
or at the first request (`always`). An idle tab is closed. Each tab is a separate purchase, whose amount counts against
the budget until the settle. The price of each request is taken from this amount. After the settle, only the relay
charge remains as the cost of the tab.

    request ── ledger ── tab ─┬─ answered, acknowledged: done
                              └─ failed, or the tab ended: nothing is charged, and the request is bought as a job

After a restart, the tabs of the last run are closed. A request in the settled transcript counts as paid.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from common import quotes
from common.bundle import convert_to_output_units
from common.pricing.units import units_of
from common.quotes import FeeTerms
from common.refusal import Refused
from common.tab.terms import Exchange
from common.tab.transcript import Transcript
from svc.errors import (
    NoProvider,
    NotFound,
    OrderRefused,
    OverCeiling,
    PostRefused,
    ResultUnreadable,
    SvcError,
    TabEnded,
    TabFaulty,
    TabRequestFailed,
    WaitTimedOut,
)
from svc.records import Job
from svc.serve.attempts import OpenPurchase, PurchaseContext
from svc.serve.ledger import TAB_KIND, LedgerJob, LedgerPurchase
from svc.serve.media_answers import BoughtAnswer
from svc.serve.problems import Problem
from svc.serve.request_ids import split_tab_request_id, tab_request_id
from svc.serve.requests import CHAT, RESPONSES, AnswerRequest
from svc.tabs.files import TabFile
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab, TabReply, TabStream
from svc.tabs.tabs import DEFAULT_REQUESTS, BeforePost, TabOptions

_AUTO_WINDOW_S: Final = 60.0  # two requests within this time open a tab
_IDLE_TIMEOUT_S: Final = 45.0  # an idle tab is closed after this time; its provider would settle it after 60 s
_RETRY_PAUSE_S: Final = 60.0  # after a tab could not be opened, and between attempts to settle a tab
# Pause after a provider claimed a tab but did not open it. This pause is long, because such a claim may cost the relay
# charge.
_REFUSED_RETRY_PAUSE_S: Final = 600.0
_MAX_TAB_DURATION_S: Final = 3 * 86_400.0  # no tab lasts longer
_MAX_TABS_PER_MODEL: Final = 8
# Limit of the replies kept for one tab. An honest provider closes a tab at 8 MiB of answers.
_MAX_REPLY_CHARS: Final = 16 << 20
_MIN_REQUESTS: Final = 2  # a tab for fewer requests is not worth its relay charge

ModelKey = tuple[str, str, tuple[int, ...]]  # model, window, providers


@attrs.define(eq=False)
class ServedTab:
    """Open tab. `replies` are kept until the settle, for answers that were not delivered."""

    tab: Tab
    model_key: ModelKey
    job: LedgerJob
    last_used_at: float
    replies: dict[int, TabReply] = attrs.field(factory=dict)
    reply_chars: int = 0
    changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def has_room(self) -> bool:
        return self.reply_chars <= _MAX_REPLY_CHARS

    @property
    def request_terms(self) -> FeeTerms:
        return attrs.evolve(self.job.terms, gas_fee=0)


class NotAnsweredInTab(Exception):
    """The request was not answered in the tab, and is not charged."""


@attrs.define(eq=False)
class ServedTabs:
    """Open tabs of the server."""

    context: PurchaseContext
    _tabs: list[ServedTab] = attrs.field(factory=list)
    _requested_at: dict[ModelKey, float] = attrs.field(factory=dict)
    _retry_at: dict[ModelKey, float] = attrs.field(factory=dict)
    _models_with_tabs: set[ModelKey] = attrs.field(factory=set)  # models for which the last tab could be opened
    _opening_locks: dict[ModelKey, anyio.Lock] = attrs.field(factory=dict)
    _recovering: dict[str, anyio.Event] = attrs.field(factory=dict)

    async def find_tab(self, purchase: OpenPurchase, requested: AnswerRequest) -> ServedTab | None:
        """Return a tab for a request, or None if the request should be bought as a job."""
        if not self._may_use_tab(requested):
            return None
        rule = requested.rule
        model_key, now = (requested.model.id, rule.window, rule.providers), anyio.current_time()
        last, self._requested_at[model_key] = self._requested_at.get(model_key, float("-inf")), now
        if (found := self._find_free_tab(model_key, requested)) is not None:
            return found
        is_frequent = self.context.settings.tabs == "always" or now - last <= _AUTO_WINDOW_S
        if not is_frequent or now < self._retry_at.get(model_key, float("-inf")):
            return None
        if self.context.settings.tabs == "auto" and model_key not in self._models_with_tabs:
            # Perhaps no provider accepts tabs, so open a tab in the background and buy this request as a job.
            self.context.start_task("opening a tab", self._open_shared_tab, purchase.row.key, model_key, requested)
            return None
        await self._open_shared_tab(purchase.row.key, model_key, requested)
        return self._find_free_tab(model_key, requested)

    async def _open_shared_tab(self, key_name: str, model_key: ModelKey, requested: AnswerRequest) -> None:
        """Open a tab that this request fits into, unless a parallel request has opened one."""
        async with self._opening_locks.setdefault(model_key, anyio.Lock()):
            now, count = anyio.current_time(), sum(each.model_key == model_key for each in self._tabs)
            recently_failed = now < self._retry_at.get(model_key, float("-inf"))
            if recently_failed or count >= _MAX_TABS_PER_MODEL or self._find_free_tab(model_key, requested) is not None:
                return
            if await self._open_tab(key_name, model_key) is None:
                earliest = anyio.current_time() + _RETRY_PAUSE_S
                self._retry_at[model_key] = max(earliest, self._retry_at.get(model_key, earliest))
                self._models_with_tabs.discard(model_key)
            else:
                self._models_with_tabs.add(model_key)

    async def answer(self, purchase: OpenPurchase, requested: AnswerRequest, served: ServedTab) -> BoughtAnswer:
        """Answer a request in this tab.

        Raises NotAnsweredInTab if the tab does not answer or the request could exceed its limit. Raises Problem if the
        budget is spent.
        """
        tab = served.tab
        try:
            stream = tab.hold(requested.input)
        except (TabEnded, OrderRefused) as ended:
            raise NotAnsweredInTab(ended.message) from None
        try:
            job = await self._record_request(purchase, requested, served, stream)
        except BaseException:
            tab.withdraw(stream)
            raise
        purchase.job, purchase.tab_stream, purchase.status = job, stream, "in_progress"
        tab.release(stream)
        purchase.notify()
        try:
            reply = await stream.answer()
        except (TabEnded, TabRequestFailed) as failed:
            await self._record_request_end(job, 0, paid=False)
            if isinstance(failed, TabFaulty):
                self.context.report(failed.message)
            raise NotAnsweredInTab(failed.message) from None
        served.replies[stream.id] = reply
        served.reply_chars += len(str(reply.output))
        served.last_used_at = anyio.current_time()
        served.changed.set()
        cost = quotes.cost_parts(reply.cost, served.request_terms).total
        await self._record_request_end(job, cost, paid=True)
        return _bought_answer(job, cost, reply.output, reply.usage)

    async def read_answer_again(self, job: LedgerJob) -> BoughtAnswer:
        """Return the answer of an earlier request. Raises Problem while its tab is not settled."""
        tab_id, number = split_tab_request_id(job.job_id)
        for served in self._tabs:
            if served.tab.id == tab_id and number in served.replies:
                reply = served.replies[number]
                return _bought_answer(job, job.cost or 0, reply.output, reply.usage)
        _, exchanges = await self._read_settled_tab(tab_id)
        exchange = exchanges.get(number or 0)
        if exchange is None:
            message = "the answer is not in its tab's transcript: use a new idempotency key to buy another"
            raise Problem(409, message, code="no_result")
        return _bought_answer(job, job.cost or 0, exchange.output, exchange.usage)

    async def close_tabs_of_last_run(self) -> None:
        """Close the tabs that the last run left open."""
        for job in await self.context.ledger.list_unsettled_tabs():
            self._recovering[job.job_id] = anyio.Event()
            self.context.start_task("closing a tab", self._recover_tab, job)

    async def recover_request(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a request that the last run left open, once its tab is settled."""
        tab_id, number = split_tab_request_id(job.job_id)
        if (recovering := self._recovering.get(tab_id)) is not None:
            await recovering.wait()
        try:
            ended, exchanges = await self._read_settled_tab(tab_id)
        except (Problem, SvcError) as unreadable:
            self.context.report(
                f"request {job.job_id}: cannot determine the cost, so the next start tries again: {unreadable}"
            )
            return
        exchange = exchanges.get(number or 0)
        if ended is None or exchange is None:
            await self._record_request_end(job, 0, paid=False)
        else:
            order = ended.svc
            units = convert_to_output_units(exchange.units_in, exchange.units_out, order.rate_in, order.rate_out)
            pay = quotes.cost(0, order.rate_out, 0, order.units_out, completion_tok=units)
            cost = quotes.cost_parts(pay, job.terms).total
            await self._record_request_end(job, cost, paid=True)
            await self._reduce_tab_cost(tab_id, cost)
        await self.context.ledger.record_purchase_end(purchase.row.id, "failed" if exchange is None else "done")

    def _may_use_tab(self, requested: AnswerRequest) -> bool:
        settings = self.context.settings
        if settings.tabs == "off" or settings.buying.final or requested.route not in (CHAT, RESPONSES):
            return False
        return not requested.rule.has_rates and requested.units_out is None

    def _find_free_tab(self, model_key: ModelKey, requested: AnswerRequest) -> ServedTab | None:
        fitting = [each for each in self._tabs if each.model_key == model_key and self._fits(each, requested)]
        return min(fitting, key=lambda each: each.tab.open_requests, default=None)

    def _fits(self, served: ServedTab, requested: AnswerRequest) -> bool:
        try:
            units = units_of("text", requested.input)
        except Refused:
            return False
        return served.has_room and served.tab.fits(units.units_in, units.units_out)

    async def _open_tab(self, key_name: str, model_key: ModelKey) -> ServedTab | None:
        """Open a tab in a separate task, and return it. Returns None if no tab can be opened now."""
        send, receive = anyio.create_memory_object_stream[ServedTab | None](1)
        self.context.start_task("tab", self._run_tab, key_name, model_key, send)
        async with receive:
            try:
                return await receive.receive()
            except anyio.EndOfStream:  # the task failed, or the server stops
                return None

    async def _run_tab(
        self, key_name: str, model_key: ModelKey, send: MemoryObjectSendStream[ServedTab | None]
    ) -> None:
        async with send:
            served: ServedTab | None = None
            job: LedgerJob | None = None

            async def record(file: TabFile) -> None:
                nonlocal job
                job = await self._record_tab_order(key_name, model_key, file)

            try:
                async with self._open_within_budget(key_name, model_key, record) as tab:
                    if job is None:
                        raise AssertionError("the tab was opened without an entry in the ledger")
                    served = ServedTab(tab, model_key, job, anyio.current_time())
                    self._tabs.append(served)
                    await send.send(served)
                    try:
                        await self._wait_until_idle(served)
                    finally:
                        self._tabs.remove(served)
                await self._record_settle(served.job, tab.outcome)
                return
            except (SvcError, Problem) as failed:
                if served is None:
                    if isinstance(failed, TabEnded):
                        self._retry_at[model_key] = anyio.current_time() + _REFUSED_RETRY_PAUSE_S
                    await send.send(None)
                if not isinstance(failed, NoProvider):  # after NoProvider, requests are bought as jobs
                    self.context.report(f"tab for model {model_key[0]} failed: {failed}")
        if job is not None:
            await self._finish_tab(job)

    @asynccontextmanager
    async def _open_within_budget(self, key_name: str, model_key: ModelKey, record: BeforePost) -> AsyncIterator[Tab]:
        """Open a tab within the ceiling and the budget, with fewer answers than usual if necessary.

        The tab reserves at most half of the budget that is left, so that single jobs can still be bought.
        """
        context = self.context
        ceiling = (await context.client.orders.account.order_ceiling(context.settings.budget.per_request)).max_amount
        left = context.budgets.remaining_amount(key_name, context.clock())
        limit = ceiling if left is None else min(ceiling, left // 2)
        model, window, providers = model_key
        options: TabOptions = {"window": window, "max_amount": limit, "requests": DEFAULT_REQUESTS}
        if providers:
            options["provider"] = providers[0]
        try:
            async with context.client.tabs.open(model, before_post=record, **options) as tab:
                yield tab
            return
        except OverCeiling as over:
            requests = DEFAULT_REQUESTS * limit // max(1, over.amount)
            if requests < _MIN_REQUESTS:
                raise
            options["requests"] = requests
        async with context.client.tabs.open(model, before_post=record, **options) as tab:
            yield tab

    async def _record_tab_order(self, key_name: str, model_key: ModelKey, file: TabFile) -> LedgerJob:
        """Reserve and record the amount of a tab before its post, because a posted tab may be charged in full."""
        context, at = self.context, self.context.clock()
        row = LedgerPurchase(
            f"pur_{secrets.token_hex(12)}", at, key_name, TAB_KIND, model_key[0], model_key[0], "", None
        )
        job = LedgerJob(file.id, row.id, at, file.provider, file.amount, file.fee_terms)
        context.budgets.reserve_tab(key_name, file.id, file.amount, at)
        try:
            await context.ledger.add_purchase(row, job)
        except BaseException:
            context.budgets.settle(file.id, 0, context.clock())
            raise
        return job

    async def _wait_until_idle(self, served: ServedTab) -> None:
        """Wait until the tab ends, is idle, or has too many replies to keep."""
        while served.tab.is_open and served.has_room:
            busy = served.tab.open_requests > 0
            left = _IDLE_TIMEOUT_S - (anyio.current_time() - served.last_used_at)
            if not busy and left <= 0:
                return
            with anyio.move_on_after(_IDLE_TIMEOUT_S if busy else left):
                await served.changed.wait()
                served.changed = anyio.Event()

    async def _record_request(
        self, purchase: OpenPurchase, requested: AnswerRequest, served: ServedTab, stream: TabStream
    ) -> LedgerJob:
        """Reserve and record the highest cost of a request. Raises NotAnsweredInTab if the client's limit is lower."""
        context, opened = self.context, stream.request
        units = served.tab.owner_tab.exchange_units(opened.units_in, opened.max_units_out)
        amount = quotes.cost_parts(served.tab.cost_of(units), served.request_terms).total
        if requested.max_amount is not None and amount > requested.max_amount:
            raise NotAnsweredInTab(
                f"the request may cost {amount} base units in a tab, above its limit of {requested.max_amount}"
            )
        id = tab_request_id(served.tab.id, stream.id)
        context.budgets.reserve(purchase.row.key, id, amount, context.clock())
        job = LedgerJob(id, purchase.row.id, context.clock(), served.tab.provider, amount, served.request_terms)
        try:
            await context.ledger.add_job(job)
        except BaseException:
            context.budgets.settle(id, 0, context.clock())
            raise
        return job

    async def _record_request_end(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        context = self.context
        context.budgets.settle(job.job_id, cost, context.clock())
        await context.write_until_stored(
            lambda: context.ledger.record_job_end(job.job_id, "done" if paid else "unpaid", cost)
        )

    async def _record_settle(self, job: LedgerJob, outcome: TabOutcome | None) -> None:
        """Record the cost of an ended tab, less the cost of its requests. Record nothing without an `outcome`."""
        if outcome is None:
            return
        if outcome.fault is not None:
            self.context.report(f"tab {job.job_id}: {outcome.fault}")
        await self._record_tab_cost(job, outcome.cost)

    async def _record_tab_cost(self, job: LedgerJob, paid: int) -> None:
        context = self.context
        requests = await context.ledger.list_tab_requests(job.job_id)
        if paid == 0:
            for request in requests:
                if request.state == "done":
                    await self._record_request_refund(request)
            await self._record_request_end(job, 0, paid=False)
        else:
            await self._record_request_end(job, max(0, paid - sum(each.cost or 0 for each in requests)), paid=True)
        await context.ledger.record_purchase_end(job.purchase_id, "done")

    async def _reduce_tab_cost(self, tab_id: str, cost: int) -> None:
        """Subtract a request's cost from its tab's cost, which was recorded when the request's cost was unknown."""
        tab = await self.context.ledger.find_job(tab_id)
        if tab is None or tab.cost is None:
            return
        left = max(0, tab.cost - cost)
        self.context.budgets.settle(tab_id, left, self.context.clock())
        await self.context.write_until_stored(lambda: self.context.ledger.record_job_end(tab_id, "done", left))

    async def _record_request_refund(self, request: LedgerJob) -> None:
        self.context.budgets.settle(request.job_id, 0, self.context.clock())
        await self.context.write_until_stored(lambda: self.context.ledger.mark_refunded(request.job_id))

    async def _record_chain_cost(self, job: LedgerJob) -> None:
        """Record the cost of a tab from its job, because the tab itself cannot be checked."""
        ended = await self.context.client.wait(job.job_id)
        parts = ended.svc.cost_parts
        paid = 0 if parts is None else parts.provider + parts.fee + parts.gas_fee
        await self._record_tab_cost(job, paid if ended.status == "completed" else 0)

    async def _recover_tab(self, job: LedgerJob) -> None:
        try:
            await self._finish_tab(job)
        finally:
            self._recovering.pop(job.job_id).set()

    async def _finish_tab(self, job: LedgerJob) -> None:
        """Settle and check a tab that is no longer served, and record its cost. Retry until the tab's end is known."""
        last_report = ""
        while True:
            try:
                await self._try_to_finish_tab(job)
                return
            except SvcError as failed:
                if failed.message != last_report:
                    self.context.report(f"tab {job.job_id}: cannot be settled and checked yet: {failed.message}")
                    last_report = failed.message
            await anyio.sleep(_RETRY_PAUSE_S)

    async def _try_to_finish_tab(self, job: LedgerJob) -> None:
        """Record the end of a tab. Raises SvcError while the end is unknown."""
        try:
            try:
                await self._record_settle(job, await self.context.client.tabs.close(job.job_id))
            except OrderRefused:  # the tab's file is missing, so the tab was settled and checked
                await self._record_chain_cost(job)
            except (TabFaulty, ResultUnreadable) as faulty:
                self.context.report(f"tab {job.job_id}: {faulty.message}")
                await self._record_chain_cost(job)
        except PostRefused:
            await self._record_tab_cost(job, 0)
        except WaitTimedOut:
            if self.context.clock() - job.created_at <= _MAX_TAB_DURATION_S or await self._job_exists(job.job_id):
                raise
            await self._record_tab_cost(job, 0)

    async def _job_exists(self, job_id: str) -> bool:
        try:
            await self.context.client.jobs.get(job_id)
        except NotFound:
            return False
        return True

    async def _read_settled_tab(self, tab_id: str) -> tuple[Job | None, Mapping[int, Exchange]]:
        """Return a settled tab and the exchanges in its transcript. Raises Problem while the tab is not settled."""
        try:
            job = await self.context.client.jobs.get(tab_id)
        except NotFound:
            return None, {}
        if not job.ended:
            message = "the answer can be read again once its tab is settled: retry in a minute"
            raise Problem(503, message, code="tab_open", retry=True)
        if job.status != "completed":
            return job, {}
        result = await self.context.client.open(job)
        try:
            return job, {exchange.id: exchange for exchange in Transcript.read(result.output).exchanges}
        except Refused:
            return job, {}


def _bought_answer(job: LedgerJob, cost: int, output: object, usage: dict[str, object]) -> BoughtAnswer:
    return BoughtAnswer(job.job_id, job.provider, job.amount, cost, job.terms, int(job.created_at), output, usage)
