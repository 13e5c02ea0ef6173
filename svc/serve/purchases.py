"""Buy answers: choose an offer, post a job, open its result, and retry with other providers.

                       ┌───────── failed, or not claimed in time: the next provider ◄──┐
    new ──── offer ── ledger ── post ── wait ── open ── answered                       │
                                          └────────────────────────────────────────────┘

A purchase continues after its client disconnects, and a client that repeats the request joins the purchase. An
idempotency key never buys two answers. Without a key, an answer that was bought but not delivered goes to the next
identical request.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from svc.errors import ApiError, JobFailed, NoProvider, OverCeiling, PostRefused, SvcError
from svc.serve.answers import purchase_kind
from svc.serve.attempts import JobAttempts, OpenPurchase, PurchaseContext
from svc.serve.budgets import DAY_S
from svc.serve.keys import ApiKey
from svc.serve.ledger import RUNNING_JOB_STATES, LedgerJob, LedgerPurchase
from svc.serve.media_answers import BoughtAnswer
from svc.serve.prices import MarketOffer
from svc.serve.problems import Problem, StorageFailed, internal_problem, invalid_request, problem_from_error
from svc.serve.request_ids import is_tab_request_id
from svc.serve.requests import AnswerRequest
from svc.serve.tabs import NotAnsweredInTab, ServedTabs

_NO_TIMEOUT: Final = float("inf")
_RETRY_PAUSE_S: Final = 1.0  # before a request is retried after an error of the coordinator


@attrs.frozen
class _FailedAttempt:
    """Attempt without a result.

    `can_retry`: another attempt may succeed, after `retry_after_seconds`. `avoid_provider`: avoid this provider for a
    while, for less time if the provider only failed to claim the job (`unclaimed`).
    """

    error: Problem
    provider: int
    can_retry: bool
    avoid_provider: bool = False
    unclaimed: bool = False
    retry_after_seconds: float = 0.0


OutcomeSender = MemoryObjectSendStream[BoughtAnswer | _FailedAttempt]


@attrs.define(eq=False)
class AnswerPurchases:
    """Runs purchases, and finds open purchases by idempotency key or by the digest of the request."""

    context: PurchaseContext
    tabs: ServedTabs = attrs.field(
        init=False, default=attrs.Factory(lambda self: ServedTabs(self.context), takes_self=True)
    )
    _by_idempotency_key: dict[tuple[str, str], OpenPurchase] = attrs.field(factory=dict)
    _by_digest: dict[tuple[str, str], list[OpenPurchase]] = attrs.field(factory=dict)
    _join_lock: anyio.Lock = attrs.field(factory=anyio.Lock)

    @property
    def _attempts(self) -> JobAttempts:
        return JobAttempts(self.context)

    async def resume(self) -> None:
        """Resume the purchases that were running when the server last stopped."""
        await self.tabs.close_tabs_of_last_run()
        for row in await self.context.ledger.list_running_purchases():
            jobs = await self.context.ledger.list_jobs(row.id)
            open_jobs = [job for job in jobs if job.state in RUNNING_JOB_STATES]
            if not open_jobs:  # the server stopped between two attempts, so nothing was bought
                await self.context.ledger.record_purchase_end(row.id, "failed")
                continue
            purchase = OpenPurchase(row, None, "posting", open_jobs[0])
            if is_tab_request_id(open_jobs[0].job_id):
                self.context.start_task("accounting", self.tabs.recover_request, purchase, open_jobs[0])
                continue
            self._add_open(purchase)
            for job in open_jobs[1:]:
                self.context.start_task("accounting", self._attempts.record_cost, purchase, job)
            self.context.start_task("purchase", self._run, purchase, open_jobs[0])
        for job in await self.context.ledger.list_unconfirmed_jobs():
            self.context.start_task("confirming", self._attempts.confirm, job, None)

    async def buy(
        self, key: ApiKey, requested: AnswerRequest, digest: str, idempotency_key: str | None
    ) -> OpenPurchase:
        """Return a running or undelivered purchase of this answer, or start a new purchase. Raises Problem."""
        async with self._join_lock:
            found = await self._find_earlier_purchase(key, requested, digest, idempotency_key)
            if found is not None:
                found.is_abandoned = False
                if found.requested is None:
                    found.requested = requested
                found.waiting_clients += 1
                return found
            route_name = purchase_kind(requested)
            row = LedgerPurchase(
                f"pur_{secrets.token_hex(12)}",
                self.context.clock(),
                key.name,
                route_name,
                requested.model_name,
                requested.model.id,
                digest,
                idempotency_key,
            )
            await self.context.ledger.add_purchase(row)
            purchase = OpenPurchase(row, requested, waiting_clients=1)
            self._add_open(purchase)
        self.context.start_task("purchase", self._run, purchase, None)
        return purchase

    def find_by_job(self, job_id: str) -> OpenPurchase | None:
        """Return the open purchase to which this job belongs."""
        opened = (purchase for purchases in self._by_digest.values() for purchase in purchases)
        return next((each for each in opened if each.job is not None and each.job.job_id == job_id), None)

    def find_open(self, key: str, idempotency_key: str) -> OpenPurchase | None:
        """Return the open purchase with this idempotency key."""
        return self._by_idempotency_key.get((key, idempotency_key))

    def stop_waiting(self, purchase: OpenPurchase) -> None:
        """Record that a client no longer waits. When the last client leaves, the purchase is abandoned."""
        purchase.waiting_clients -= 1
        if purchase.waiting_clients:
            return
        if purchase.ended:
            self._remove_open(purchase)  # the next identical request finds the undelivered answer in the ledger
        elif not self.context.is_stopping:
            purchase.is_abandoned = True
            purchase.notify()

    async def mark_delivered(self, purchase: OpenPurchase) -> None:
        """Record the delivery. Never raises. Without the record, the same request may get this answer again."""
        self._remove_open(purchase)
        try:
            await self.context.ledger.mark_delivered(purchase.row.id)
        except StorageFailed as failed:
            self.context.report(failed.message)

    async def _find_earlier_purchase(
        self, key: ApiKey, requested: AnswerRequest, digest: str, idempotency_key: str | None
    ) -> OpenPurchase | None:
        if idempotency_key is None:
            for purchase in self._by_digest.get((key.name, digest), ()):
                if not purchase.waiting_clients and not (purchase.ended and purchase.problem):
                    return purchase
            rows = await self.context.ledger.list_undelivered_purchases(key.name, digest, self.context.clock() - DAY_S)
            known_ids = {purchase.row.id for purchase in self._by_digest.get((key.name, digest), ())}
            row = next((row for row in rows if row.id not in known_ids), None)
            return None if row is None else self._reopen(row, requested)
        known = self._by_idempotency_key.get((key.name, idempotency_key))
        if known is not None and known.problem is None:
            _require_same_digest(known.row, digest)
            return known
        row = await self.context.ledger.find_by_idempotency_key(key.name, idempotency_key)
        if row is None:
            return None
        _require_same_digest(row, digest)
        if row.state != "done":  # none of the purchase's jobs is running or paid
            raise Problem(409, "the request with this idempotency key has just failed: retry the request", retry=True)
        return self._reopen(row, requested)

    def _reopen(self, row: LedgerPurchase, requested: AnswerRequest) -> OpenPurchase:
        """Open a paid purchase again, and read its result in the background. Nothing is bought."""
        purchase = OpenPurchase(row, requested, "completed")
        self._add_open(purchase)
        self.context.start_task("purchase", self._run, purchase, None)
        return purchase

    def _add_open(self, purchase: OpenPurchase) -> None:
        row = purchase.row
        self._by_digest.setdefault((row.key, row.digest), []).append(purchase)
        if row.idempotency_key is not None:
            self._by_idempotency_key[row.key, row.idempotency_key] = purchase

    def _remove_open(self, purchase: OpenPurchase) -> None:
        row = purchase.row
        same_digest = self._by_digest.get((row.key, row.digest), [])
        if purchase in same_digest:
            same_digest.remove(purchase)
        if not same_digest:
            self._by_digest.pop((row.key, row.digest), None)
        if row.idempotency_key is not None and self._by_idempotency_key.get((row.key, row.idempotency_key)) is purchase:
            del self._by_idempotency_key[row.key, row.idempotency_key]

    async def _run(self, purchase: OpenPurchase, job: LedgerJob | None) -> None:
        """Run the purchase to its end.

        Never raises. An error is recorded in the ledger, and becomes `purchase.problem`.
        """
        bought: BoughtAnswer | None = None
        problem: Problem | None = None
        try:
            if purchase.row.state == "done":
                bought = await self._read_result_again(purchase)
            else:
                bought = await self._answer_in_tab(purchase, job) or await self._buy_answer(purchase, job)
                await self.context.ledger.record_purchase_end(purchase.row.id, "done")
        except Problem as refused:
            problem = refused
        except SvcError as error:
            problem = problem_from_error(error, None if purchase.job is None else purchase.job.job_id)
        except Exception as error:  # one purchase failed: the server continues
            self.context.report(f"purchase failed unexpectedly: {type(error).__name__}: {error}")
            problem = internal_problem()
        if bought is None and purchase.row.state != "done":
            try:
                paid = purchase.job is not None and await self._has_paid_job(purchase)
                await self.context.ledger.record_purchase_end(purchase.row.id, "done" if paid else "failed")
            except Exception as error:  # for example a full disk: the next start resumes the purchase
                self.context.report(f"cannot write the ledger: {type(error).__name__}: {error}")
        purchase.answer, purchase.problem = bought, None if bought is not None else problem
        if purchase.problem is not None or not purchase.waiting_clients:
            self._remove_open(purchase)  # the ledger has everything that a later request needs
        purchase.notify()

    async def _has_paid_job(self, purchase: OpenPurchase) -> bool:
        return any(job.state == "done" for job in await self.context.ledger.list_jobs(purchase.row.id))

    async def _read_result_again(self, purchase: OpenPurchase) -> BoughtAnswer:
        jobs = await self.context.ledger.list_jobs(purchase.row.id)
        for job in jobs:
            if job.state == "done" and is_tab_request_id(job.job_id):
                purchase.job = job
                return await self.tabs.read_answer_again(job)
            if job.state == "done":
                purchase.job = job
                return await self._attempts.open_result(job, await self.context.client.jobs.get(job.job_id))
        for job in jobs:
            provisional = await self.context.ledger.get_provisional_result(job.job_id)
            if provisional is not None:
                purchase.job = job
                return await self._attempts.read_provisional_again(job, provisional)
        raise Problem(
            409,
            "the result bought with this idempotency key is missing from the ledger: use a new key to buy another",
            code="no_result",
        )

    async def _buy_answer(self, purchase: OpenPurchase, job: LedgerJob | None) -> BoughtAnswer:
        """Return the first successful attempt's result. Attempts run in parallel only if `hedge_seconds` is set."""
        buying = self.context.settings.buying
        started, started_attempts, running = anyio.current_time(), 0, 0
        tried_providers = purchase.tried_providers
        last_problem: Problem | None = None
        send, receive = anyio.create_memory_object_stream[BoughtAnswer | _FailedAttempt](buying.max_attempts + 1)

        async def start_attempt() -> None:
            nonlocal started_attempts, running
            if purchase.requested is None:
                raise last_problem or Problem(
                    503, "the job failed after svc serve restarted: retry the request", retry=True
                )
            requested = purchase.requested
            offer = await self.context.prices.best_offer(requested.model, requested.rule, tried_providers)
            tried_providers.add(offer.provider)
            started_attempts, running = started_attempts + 1, running + 1
            purchase.can_retry = started_attempts < buying.max_attempts and not is_too_late_to_retry()
            self.context.start_task("attempt", self._run_attempt, purchase, requested, offer, send)

        def is_too_late_to_retry() -> bool:
            return anyio.current_time() - started > buying.retry_seconds

        async with send, receive:
            if job is not None:
                tried_providers.add(job.provider)
                purchase.can_retry = buying.max_attempts > 1
                self.context.prices.load.on_chosen(job.provider)
                self.context.start_task("attempt", self._resume_attempt, purchase, job, send)
                started_attempts = running = 1
            else:
                await start_attempt()
            while True:
                hedging = buying.hedge_seconds > 0 and running == 1 and started_attempts < buying.max_attempts
                outcome: BoughtAnswer | _FailedAttempt | None = None
                with anyio.move_on_after(buying.hedge_seconds if hedging else _NO_TIMEOUT):
                    outcome = await receive.receive()
                if outcome is None:
                    with suppress(NoProvider):  # without another provider, the first attempt continues
                        await start_attempt()
                    continue
                running -= 1
                if isinstance(outcome, BoughtAnswer):
                    return outcome
                last_problem = outcome.error
                self._record_failure(outcome, tried_providers)
                if running:
                    continue
                if (
                    not outcome.can_retry
                    or is_too_late_to_retry()
                    or started_attempts >= buying.max_attempts
                    or purchase.is_abandoned
                ):
                    raise last_problem
                await anyio.sleep(outcome.retry_after_seconds)
                try:
                    await start_attempt()
                except NoProvider:
                    raise last_problem from None  # the earlier failure is more specific than NoProvider

    async def _answer_in_tab(self, purchase: OpenPurchase, job: LedgerJob | None) -> BoughtAnswer | None:
        """Return the answer from a tab. Return None if the request must be bought as a job, or already has a job."""
        requested = purchase.requested
        if job is not None or requested is None or (served := await self.tabs.find_tab(purchase, requested)) is None:
            return None
        try:
            return await self.tabs.answer(purchase, requested, served)
        except NotAnsweredInTab as broke:
            if purchase.is_partly_streamed:  # another answer would not continue the streamed text
                message = f"the answer was cut off and is not charged; retry the request: {broke}"
                raise Problem(502, message, type="server_error", code="tab_broke", retry=True) from None
            self.context.report(f"{broke}; the request is bought as a job")
        purchase.job, purchase.tab_stream, purchase.status = None, None, "preparing"
        return None

    def _record_failure(self, outcome: _FailedAttempt, tried_providers: set[int]) -> None:
        if outcome.avoid_provider:
            self.context.prices.load.exclude(outcome.provider, unclaimed=outcome.unclaimed)
        else:
            tried_providers.discard(outcome.provider)

    async def _run_attempt(
        self, purchase: OpenPurchase, requested: AnswerRequest, offer: MarketOffer, send: OutcomeSender
    ) -> None:
        async def attempt() -> BoughtAnswer:
            try:
                job, prepared = await self._attempts.post(purchase, requested, offer)
            except BaseException:
                self.context.prices.load.on_ended(offer.provider, claimed=False)
                raise
            return await self._attempts.wait_and_open(purchase, job, prepared)

        await _send_outcome(send, await self._attempt_outcome(offer.provider, purchase, attempt))

    async def _resume_attempt(self, purchase: OpenPurchase, job: LedgerJob, send: OutcomeSender) -> None:
        async def attempt() -> BoughtAnswer:
            return await self._attempts.wait_and_open(purchase, job, None)

        await _send_outcome(send, await self._attempt_outcome(job.provider, purchase, attempt))

    async def _attempt_outcome(
        self, provider: int, purchase: OpenPurchase, attempt: Callable[[], Awaitable[BoughtAnswer]]
    ) -> BoughtAnswer | _FailedAttempt:
        """Return the attempt's result or failure. Never raises, so that one attempt cannot cancel others."""
        try:
            return await attempt()
        except Problem as problem:
            return _FailedAttempt(problem, provider, can_retry=False)
        except PostRefused as refused:  # the post failed, not the provider
            return _FailedAttempt(problem_from_error(refused, refused.job_id), provider, can_retry=False)
        except JobFailed as failed:
            unclaimed = failed.job_id in purchase.unclaimed_job_ids
            # If the job was cancelled because no client wanted the answer, the provider has not failed.
            avoid_provider = unclaimed or failed.code != "cancelled"
            job_problem = problem_from_error(failed, failed.job_id)
            return _FailedAttempt(
                job_problem, provider, can_retry=not purchase.ended, avoid_provider=avoid_provider, unclaimed=unclaimed
            )
        except OverCeiling as over:  # the market raised its charges since the last quote
            self.context.prices.forget_fee_terms()
            return _FailedAttempt(problem_from_error(over), provider, can_retry=True)
        except SvcError as error:
            job_id = None if purchase.job is None else purchase.job.job_id
            retry = isinstance(error, ApiError) and error.retryable
            return _FailedAttempt(
                problem_from_error(error, job_id), provider, can_retry=retry, retry_after_seconds=_RETRY_PAUSE_S
            )
        except Exception as error:
            self.context.report(f"attempt failed unexpectedly: {type(error).__name__}: {error}")
            return _FailedAttempt(internal_problem(), provider, can_retry=False)


def _require_same_digest(row: LedgerPurchase, digest: str) -> None:
    if row.digest != digest:
        message = "this idempotency key was used for another request: use a new key"
        raise invalid_request(message, "idempotency-key", "idempotency_key_reused")


async def _send_outcome(send: OutcomeSender, outcome: BoughtAnswer | _FailedAttempt) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # another attempt has succeeded
        await send.send(outcome)
