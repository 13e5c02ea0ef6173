"""Tabs of `svc serve`: open, share, renew and settle them, and account for each request.

A tab is opened at the second request to a model within a minute (`auto`) or at the first request (`always`). An idle
tab is closed. Each tab is a separate purchase, whose amount counts against the budget until the settle. Each request
takes the price of its units from this amount. After the settle, only the relay charge is left as the tab's own cost.

    request ── ledger ── tab ─┬─ answered, acknowledged: done
                              └─ failed, or the tab ended: nothing is charged, and the request is bought as a job

After a restart, the tabs of the last run are closed. A request counts as paid if the settled transcript has it.
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
from svc.serve.attempts import OpenPurchase, Trade
from svc.serve.ledger import TAB_KIND, LedgerJob, LedgerPurchase
from svc.serve.media_answers import BoughtAnswer
from svc.serve.problems import Problem
from svc.serve.request_ids import request_id, split_request_id
from svc.serve.requests import CHAT, RESPONSES, AnswerRequest
from svc.tabs.files import TabFile
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab, TabReply, TabStream
from svc.tabs.tabs import DEFAULT_REQUESTS, BeforePost, TabOptions

_AUTO_WINDOW_S: Final = 60.0  # two requests within this time open a tab
_IDLE_TIMEOUT_S: Final = 45.0  # an idle tab is closed after this time; its provider would settle it after 60 s
_RETRY_PAUSE_S: Final = 60.0  # after a tab could not be opened, and between attempts to settle a tab
_REFUSED_RETRY_PAUSE_S: Final = (
    600.0  # after a provider claimed a tab without opening it, which may cost the relay charge
)
_MAX_TAB_DURATION_S: Final = 3 * 86_400.0  # longer than any tab can last
_MAX_TABS_PER_MODEL: Final = 8
# Limit of the replies kept for one tab. An honest provider closes a tab at 8 MiB of answers.
_MAX_REPLY_CHARS: Final = 16 << 20
_MIN_REQUESTS: Final = 2  # a smaller tab is not worth its relay charge

ModelKey = tuple[str, str, tuple[int, ...]]  # model, window, providers


@attrs.define(eq=False)
class ServedTab:
    """Open tab. `replies` are kept until the settle, for answers that were not delivered."""

    tab: Tab
    key: ModelKey
    job: LedgerJob
    used_at: float
    replies: dict[int, TabReply] = attrs.field(factory=dict)
    reply_chars: int = 0
    changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def has_room(self) -> bool:
        return self.reply_chars <= _MAX_REPLY_CHARS

    @property
    def request_terms(self) -> FeeTerms:
        return attrs.evolve(self.job.terms, gas_fee=0)


class TabBroke(Exception):
    """The request was not answered in the tab, and is not charged."""


@attrs.define(eq=False)
class ServedTabs:
    """Open tabs of the server."""

    trade: Trade
    _tabs: list[ServedTab] = attrs.field(factory=list)
    _requested_at: dict[ModelKey, float] = attrs.field(factory=dict)
    _retry_at: dict[ModelKey, float] = attrs.field(factory=dict)
    _accepted: set[ModelKey] = attrs.field(factory=set)  # models for which the last tab could be opened
    _opening_locks: dict[ModelKey, anyio.Lock] = attrs.field(factory=dict)
    _recovering: dict[str, anyio.Event] = attrs.field(factory=dict)

    async def find_tab(self, purchase: OpenPurchase, requested: AnswerRequest) -> ServedTab | None:
        """Return a tab for a request, or None if the request should be bought as a job."""
        if not self._is_suitable(requested):
            return None
        rule = requested.rule
        key, now = (requested.model.id, rule.window, rule.providers), anyio.current_time()
        last, self._requested_at[key] = self._requested_at.get(key, float("-inf")), now
        if (found := self._find_free_tab(key, requested)) is not None:
            return found
        often = self.trade.settings.tabs == "always" or now - last <= _AUTO_WINDOW_S
        if not often or now < self._retry_at.get(key, float("-inf")):
            return None
        if self.trade.settings.tabs == "auto" and key not in self._accepted:
            # Perhaps no provider accepts tabs, so open a tab in the background and buy this request as a job.
            self.trade.start("opening a tab", self._open_shared_tab, purchase.row.key, key, requested)
            return None
        await self._open_shared_tab(purchase.row.key, key, requested)
        return self._find_free_tab(key, requested)

    async def _open_shared_tab(self, key_name: str, key: ModelKey, requested: AnswerRequest) -> None:
        """Open a tab that this request fits into, unless a parallel request has opened one."""
        async with self._opening_locks.setdefault(key, anyio.Lock()):
            now, count = anyio.current_time(), sum(each.key == key for each in self._tabs)
            recently_failed = now < self._retry_at.get(key, float("-inf"))
            if recently_failed or count >= _MAX_TABS_PER_MODEL or self._find_free_tab(key, requested) is not None:
                return
            if await self._open_tab(key_name, key) is None:
                earliest = anyio.current_time() + _RETRY_PAUSE_S
                self._retry_at[key] = max(earliest, self._retry_at.get(key, earliest))
                self._accepted.discard(key)
            else:
                self._accepted.add(key)

    async def answer(self, purchase: OpenPurchase, requested: AnswerRequest, served: ServedTab) -> BoughtAnswer:
        """Answer a request in this tab.

        Raises TabBroke if the tab does not answer or the request could cost more than its own limit. Raises Problem if
        the budget is spent.
        """
        tab = served.tab
        try:
            stream = tab.hold(requested.input)
        except (TabEnded, OrderRefused) as ended:
            raise TabBroke(ended.message) from None
        try:
            job = await self._record_request(purchase, requested, served, stream)
        except BaseException:
            tab.withdraw(stream)
            raise
        purchase.job, purchase.stream, purchase.status = job, stream, "in_progress"
        tab.release(stream)
        purchase.notify()
        try:
            reply = await stream.answer()
        except (TabEnded, TabRequestFailed) as failed:
            await self._end_request(job, 0, paid=False)
            if isinstance(failed, TabFaulty):
                self.trade.report(failed.message)
            raise TabBroke(failed.message) from None
        served.replies[stream.id] = reply
        served.reply_chars += len(str(reply.output))
        served.used_at = anyio.current_time()
        served.changed.set()
        cost = quotes.cost_parts(reply.cost, served.request_terms).total
        await self._end_request(job, cost, paid=True)
        return _build_bought(job, cost, reply.output, reply.usage)

    async def read_answer_again(self, job: LedgerJob) -> BoughtAnswer:
        """Return the answer of an earlier request. Raises Problem while its tab is not settled."""
        tab_id, number = split_request_id(job.job_id)
        for served in self._tabs:
            if served.tab.id == tab_id and number in served.replies:
                reply = served.replies[number]
                return _build_bought(job, job.cost or 0, reply.output, reply.usage)
        _, exchanges = await self._read_settled_tab(tab_id)
        exchange = exchanges.get(number or 0)
        if exchange is None:
            message = "the answer is not in its tab's transcript: use a new idempotency key to buy another"
            raise Problem(409, message, code="no_result")
        return _build_bought(job, job.cost or 0, exchange.output, exchange.usage)

    async def resume(self) -> None:
        """Close the tabs of the last run."""
        for job in await self.trade.ledger.list_tabs():
            self._recovering[job.job_id] = anyio.Event()
            self.trade.start("closing a tab", self._recover_tab, job)

    async def recover_request(self, purchase: OpenPurchase, job: LedgerJob) -> None:
        """Record the cost of a request that the last run left open, once its tab is settled."""
        tab_id, number = split_request_id(job.job_id)
        if (recovering := self._recovering.get(tab_id)) is not None:
            await recovering.wait()
        try:
            ended, exchanges = await self._read_settled_tab(tab_id)
        except (Problem, SvcError) as unreadable:
            self.trade.report(
                f"request {job.job_id}: cannot determine the cost, so the next start tries again: {unreadable}"
            )
            return
        exchange = exchanges.get(number or 0)
        if ended is None or exchange is None:
            await self._end_request(job, 0, paid=False)
        else:
            order = ended.svc
            units = convert_to_output_units(exchange.units_in, exchange.units_out, order.rate_in, order.rate_out)
            pay = quotes.cost(0, order.rate_out, 0, order.units_out, completion_tok=units)
            cost = quotes.cost_parts(pay, job.terms).total
            await self._end_request(job, cost, paid=True)
            await self._reduce_tab_cost(tab_id, cost)
        await self.trade.ledger.end_purchase(purchase.row.id, "failed" if exchange is None else "done")

    def _is_suitable(self, requested: AnswerRequest) -> bool:
        settings = self.trade.settings
        if settings.tabs == "off" or settings.buying.final or requested.route not in (CHAT, RESPONSES):
            return False
        return not requested.rule.has_rates and requested.units_out is None

    def _find_free_tab(self, key: ModelKey, requested: AnswerRequest) -> ServedTab | None:
        fitting = [each for each in self._tabs if each.key == key and self._fits(each, requested)]
        return min(fitting, key=lambda each: each.tab.open_requests, default=None)

    def _fits(self, served: ServedTab, requested: AnswerRequest) -> bool:
        try:
            units = units_of("text", requested.input)
        except Refused:
            return False
        return served.has_room and served.tab.fits(units.units_in, units.units_out)

    async def _open_tab(self, key_name: str, key: ModelKey) -> ServedTab | None:
        """Open a tab in a separate task, and return it. Returns None if no tab can be opened now."""
        send, receive = anyio.create_memory_object_stream[ServedTab | None](1)
        self.trade.start("tab", self._run_tab, key_name, key, send)
        async with receive:
            try:
                return await receive.receive()
            except anyio.EndOfStream:  # the task failed, or the server stops
                return None

    async def _run_tab(self, key_name: str, key: ModelKey, send: MemoryObjectSendStream[ServedTab | None]) -> None:
        async with send:
            served: ServedTab | None = None
            job: LedgerJob | None = None

            async def record(file: TabFile) -> None:
                nonlocal job
                job = await self._record_order(key_name, key, file)

            try:
                async with self._open_within_budget(key_name, key, record) as tab:
                    if job is None:
                        raise AssertionError("the tab was opened without an entry in the ledger")
                    served = ServedTab(tab, key, job, anyio.current_time())
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
                        self._retry_at[key] = anyio.current_time() + _REFUSED_RETRY_PAUSE_S
                    await send.send(None)
                if not isinstance(failed, NoProvider):  # without a provider for tabs, requests are bought as jobs
                    self.trade.report(f"tab for {key[0]}: {failed}")
        if job is not None:
            await self._finish_tab(job)

    @asynccontextmanager
    async def _open_within_budget(self, key_name: str, key: ModelKey, record: BeforePost) -> AsyncIterator[Tab]:
        """Open a tab within the ceiling and the budget, with fewer answers than usual if necessary.

        The tab reserves at most half of the budget that is left, so that single jobs can still be bought.
        """
        trade = self.trade
        ceiling = (await trade.client.orders.account.order_ceiling(trade.settings.budget.per_request)).max_amount
        left = trade.budgets.amount_left(key_name, trade.clock())
        limit = ceiling if left is None else min(ceiling, left // 2)
        model, window, providers = key
        options: TabOptions = {"window": window, "max_amount": limit, "requests": DEFAULT_REQUESTS}
        if providers:
            options["provider"] = providers[0]
        try:
            async with trade.client.tabs.open(model, before_post=record, **options) as tab:
                yield tab
            return
        except OverCeiling as over:
            requests = DEFAULT_REQUESTS * limit // max(1, over.amount)
            if requests < _MIN_REQUESTS:
                raise
            options["requests"] = requests
        async with trade.client.tabs.open(model, before_post=record, **options) as tab:
            yield tab

    async def _record_order(self, key_name: str, key: ModelKey, file: TabFile) -> LedgerJob:
        """Reserve and record the amount of a tab before its post, because a posted tab may be charged in full."""
        trade, at = self.trade, self.trade.clock()
        row = LedgerPurchase(f"pur_{secrets.token_hex(12)}", at, key_name, TAB_KIND, key[0], key[0], "", None)
        job = LedgerJob(file.id, row.id, at, file.provider, file.amount, file.charges)
        trade.budgets.reserve_tab(key_name, file.id, file.amount, at)
        try:
            await trade.ledger.add_purchase(row, job)
        except BaseException:
            trade.budgets.settle(file.id, 0, trade.clock())
            raise
        return job

    async def _wait_until_idle(self, served: ServedTab) -> None:
        """Wait until the tab ends, is idle, or has too many replies to keep."""
        while served.tab.is_open and served.has_room:
            busy = served.tab.open_requests > 0
            left = _IDLE_TIMEOUT_S - (anyio.current_time() - served.used_at)
            if not busy and left <= 0:
                return
            with anyio.move_on_after(_IDLE_TIMEOUT_S if busy else left):
                await served.changed.wait()
                served.changed = anyio.Event()

    async def _record_request(
        self, purchase: OpenPurchase, requested: AnswerRequest, served: ServedTab, stream: TabStream
    ) -> LedgerJob:
        """Reserve and record the highest cost of a request. Raises TabBroke if the cost exceeds the request's limit."""
        trade, opened = self.trade, stream.request
        units = served.tab.book.units(opened.units_in, opened.max_units_out)
        amount = quotes.cost_parts(served.tab.cost_of(units), served.request_terms).total
        if requested.max_amount is not None and amount > requested.max_amount:
            raise TabBroke(
                f"the request may cost {amount} base units in a tab, above its limit of {requested.max_amount}"
            )
        id = request_id(served.tab.id, stream.id)
        trade.budgets.reserve(purchase.row.key, id, amount, trade.clock())
        job = LedgerJob(id, purchase.row.id, trade.clock(), served.tab.provider, amount, served.request_terms)
        try:
            await trade.ledger.add_job(job)
        except BaseException:
            trade.budgets.settle(id, 0, trade.clock())
            raise
        return job

    async def _end_request(self, job: LedgerJob, cost: int, *, paid: bool) -> None:
        trade = self.trade
        trade.budgets.settle(job.job_id, cost, trade.clock())
        await trade.persist(lambda: trade.ledger.end_job(job.job_id, "done" if paid else "unpaid", cost))

    async def _record_settle(self, job: LedgerJob, outcome: TabOutcome | None) -> None:
        """Record the cost of an ended tab, less the cost of its requests. Record nothing without an `outcome`."""
        if outcome is None:
            return
        if outcome.fault is not None:
            self.trade.report(f"tab {job.job_id}: {outcome.fault}")
        await self._record_tab_cost(job, outcome.cost)

    async def _record_tab_cost(self, job: LedgerJob, paid: int) -> None:
        trade = self.trade
        requests = await trade.ledger.list_tab_requests(job.job_id)
        if paid == 0:
            for request in requests:
                if request.state == "done":
                    await self._refund_request(request)
            await self._end_request(job, 0, paid=False)
        else:
            await self._end_request(job, max(0, paid - sum(each.cost or 0 for each in requests)), paid=True)
        await trade.ledger.end_purchase(job.purchase, "done")

    async def _reduce_tab_cost(self, tab_id: str, cost: int) -> None:
        """Subtract a request's cost from its tab's cost, which was recorded when the request's cost was unknown."""
        tab = await self.trade.ledger.find_job(tab_id)
        if tab is None or tab.cost is None:
            return
        left = max(0, tab.cost - cost)
        self.trade.budgets.settle(tab_id, left, self.trade.clock())
        await self.trade.persist(lambda: self.trade.ledger.end_job(tab_id, "done", left))

    async def _refund_request(self, request: LedgerJob) -> None:
        self.trade.budgets.settle(request.job_id, 0, self.trade.clock())
        await self.trade.persist(lambda: self.trade.ledger.mark_refunded(request.job_id))

    async def _record_chain_cost(self, job: LedgerJob) -> None:
        """Record the cost of a tab from its job, because the tab itself cannot be checked."""
        ended = await self.trade.client.wait(job.job_id)
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
                    self.trade.report(f"tab {job.job_id}: cannot be settled and checked yet: {failed.message}")
                    last_report = failed.message
            await anyio.sleep(_RETRY_PAUSE_S)

    async def _try_to_finish_tab(self, job: LedgerJob) -> None:
        """Record the end of a tab. Raises SvcError while the end is unknown."""
        try:
            try:
                await self._record_settle(job, await self.trade.client.tabs.close(job.job_id))
            except OrderRefused:  # the tab's file is gone, so the tab was settled and checked
                await self._record_chain_cost(job)
            except (TabFaulty, ResultUnreadable) as faulty:
                self.trade.report(f"tab {job.job_id}: {faulty.message}")
                await self._record_chain_cost(job)
        except PostRefused:
            await self._record_tab_cost(job, 0)
        except WaitTimedOut:
            if self.trade.clock() - job.at <= _MAX_TAB_DURATION_S or await self._job_exists(job.job_id):
                raise
            await self._record_tab_cost(job, 0)

    async def _job_exists(self, job_id: str) -> bool:
        try:
            await self.trade.client.jobs.get(job_id)
        except NotFound:
            return False
        return True

    async def _read_settled_tab(self, tab_id: str) -> tuple[Job | None, Mapping[int, Exchange]]:
        """Return a settled tab and the exchanges in its transcript. Raises Problem while the tab is not settled."""
        try:
            job = await self.trade.client.jobs.get(tab_id)
        except NotFound:
            return None, {}
        if not job.ended:
            message = "the answer can be read again once its tab is settled: retry in a minute"
            raise Problem(503, message, code="tab_open", retry=True)
        if job.status != "completed":
            return job, {}
        result = await self.trade.client.open(job)
        try:
            return job, {exchange.id: exchange for exchange in Transcript.read(result.output).exchanges}
        except Refused:
            return job, {}


def _build_bought(job: LedgerJob, cost: int, output: object, usage: dict[str, object]) -> BoughtAnswer:
    return BoughtAnswer(job.job_id, job.provider, job.amount, cost, job.terms, int(job.at), output, usage)
