"""Purchases: an answer that somebody asked for, from the offer to the opened result, at one provider or the next.

                       ┌────────────── failed, not claimed in time: the next provider ◄──┐
    asked ── offer ── ledger ── post ── wait ── open ── answered                         │
                                          └──────────────────────────────────────────────┘

A purchase goes on by itself: whoever asked may go away and ask again, and the same question joins it. Under an
idempotency key nothing is bought twice; without one, what was bought and never delivered is given to whoever asks the
same again.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from svc.errors import ApiError, JobFailed, NoProvider, OverCeiling, PostRefused, SvcError
from svc.serve.answers import headline
from svc.serve.attempts import JobAttempts, OpenPurchase, Trade
from svc.serve.budgets import DAY
from svc.serve.keys import ApiKey
from svc.serve.ledger import UNDER_WAY, LedgerJob, LedgerPurchase
from svc.serve.media_answers import Bought
from svc.serve.prices import MarketOffer
from svc.serve.problems import Problem, StorageFailed, invalid, problem_of, unexpected
from svc.serve.requests import Wanted

_FOREVER: Final = float("inf")
_PAUSE_SECONDS: Final = 1.0  # before a coordinator that is short of something is asked again


@attrs.frozen
class _Failed:
    """An attempt without a result. `again`: another may succeed, after `pause` seconds; `blame`: this provider is to be
    passed over, for less long where it only did not claim in time (`unclaimed`)."""

    error: Problem
    provider: int
    again: bool
    blame: bool = False
    unclaimed: bool = False
    pause: float = 0.0


Outcomes = MemoryObjectSendStream[Bought | _Failed]


@attrs.define(eq=False)
class AnswerPurchases:
    trade: Trade
    _named: dict[tuple[str, str], OpenPurchase] = attrs.field(factory=dict)
    _asked: dict[tuple[str, str], list[OpenPurchase]] = attrs.field(factory=dict)
    _joining: anyio.Lock = attrs.field(factory=anyio.Lock)

    @property
    def _attempts(self) -> JobAttempts:
        return JobAttempts(self.trade)

    async def resume(self) -> None:
        """Follow what was under way when this ended last."""
        for row in await self.trade.ledger.running():
            jobs = await self.trade.ledger.jobs_of(row.id)
            open_jobs = [job for job in jobs if job.state in UNDER_WAY]
            if not open_jobs:  # it ended between two attempts: whoever asks again asks anew
                await self.trade.ledger.end_purchase(row.id, "failed")
                continue
            purchase = OpenPurchase(row, None, "posting", open_jobs[0])
            self._remember(purchase)
            for job in open_jobs[1:]:
                self.trade.start("accounting", self._attempts.account_for, purchase, job)
            self.trade.start("purchase", self._run, purchase, open_jobs[0])
        for job in await self.trade.ledger.unconfirmed():
            self.trade.start("confirming", self._attempts.confirmed, job, None)

    async def buy(self, key: ApiKey, wanted: Wanted, digest: str, idempotency: str | None) -> OpenPurchase:
        """The purchase of this answer: one that is under way or was not delivered, or a new one. Raises Problem."""
        async with self._joining:
            found = await self._before(key, wanted, digest, idempotency)
            if found is not None:
                found.abandoned = False
                if found.wanted is None:
                    found.wanted = wanted
                found.waiting += 1
                return found
            kind = headline(wanted)
            row = LedgerPurchase(
                f"pur_{secrets.token_hex(12)}",
                self.trade.clock(),
                key.name,
                kind,
                wanted.name,
                wanted.model.id,
                digest,
                idempotency,
            )
            await self.trade.ledger.add_purchase(row)
            purchase = OpenPurchase(row, wanted, waiting=1)
            self._remember(purchase)
        self.trade.start("purchase", self._run, purchase, None)
        return purchase

    def leave(self, purchase: OpenPurchase) -> None:
        """Whom `buy` counted waits no more."""
        purchase.waiting -= 1
        if purchase.waiting:
            return
        if purchase.ended:
            self._forget(purchase)  # what was not delivered is read again for whoever asks
        elif not self.trade.stopping:
            purchase.abandoned = True
            purchase.tell()

    async def delivered(self, purchase: OpenPurchase) -> None:
        """Never raises: an answer that could not be recorded as delivered is given again to the same question."""
        self._forget(purchase)
        try:
            await self.trade.ledger.deliver(purchase.row.id)
        except StorageFailed as failed:
            self.trade.say(failed.message)

    async def _before(self, key: ApiKey, wanted: Wanted, digest: str, idempotency: str | None) -> OpenPurchase | None:
        if idempotency is None:
            for known in self._asked.get((key.name, digest), ()):
                if not known.waiting and not (known.ended and known.problem):
                    return known
            rows = await self.trade.ledger.undelivered(key.name, digest, self.trade.clock() - DAY)
            here = {purchase.row.id for purchase in self._asked.get((key.name, digest), ())}
            row = next((row for row in rows if row.id not in here), None)
            return None if row is None else self._reread(row, wanted)
        named = self._named.get((key.name, idempotency))
        if named is not None and named.problem is None:
            _require_same(named.row, digest)
            return named
        row = await self.trade.ledger.asked_before(key.name, idempotency)
        if row is None:
            return None
        _require_same(row, digest)
        if row.state != "done":  # it has no job that could be followed, and none that is known to be paid
            raise Problem(409, "what was asked under this idempotency key has just ended: ask again", retry=True)
        return self._reread(row, wanted)

    def _reread(self, row: LedgerPurchase, wanted: Wanted) -> OpenPurchase:
        """One that is paid: its result is read again, and nothing is bought."""
        purchase = OpenPurchase(row, wanted, "completed")
        self._remember(purchase)
        self.trade.start("purchase", self._run, purchase, None)
        return purchase

    def _remember(self, purchase: OpenPurchase) -> None:
        row = purchase.row
        self._asked.setdefault((row.key, row.digest), []).append(purchase)
        if row.idempotency is not None:
            self._named[row.key, row.idempotency] = purchase

    def _forget(self, purchase: OpenPurchase) -> None:
        row = purchase.row
        same = self._asked.get((row.key, row.digest), [])
        if purchase in same:
            same.remove(purchase)
        if not same:
            self._asked.pop((row.key, row.digest), None)
        if row.idempotency is not None and self._named.get((row.key, row.idempotency)) is purchase:
            del self._named[row.key, row.idempotency]

    # --- one purchase -----------------------------------------------------------------------------------------

    async def _run(self, purchase: OpenPurchase, job: LedgerJob | None) -> None:
        """Never raises: what went wrong is the purchase's `problem`, told once the ledger has it."""
        bought: Bought | None = None
        problem: Problem | None = None
        try:
            if purchase.row.state == "done":
                bought = await self._read_again(purchase)
            else:
                bought = await self._bought(purchase, job)
                await self.trade.ledger.end_purchase(purchase.row.id, "done")
        except Problem as refused:
            problem = refused
        except SvcError as error:
            problem = problem_of(error, None if purchase.job is None else purchase.job.job_id)
        except Exception as error:  # of this purchase alone: the server goes on
            self.trade.say(f"a purchase failed unexpectedly: {type(error).__name__}: {error}")
            problem = unexpected()
        if bought is None and purchase.row.state != "done":
            try:
                paid = purchase.job is not None and await self._is_paid(purchase)
                await self.trade.ledger.end_purchase(purchase.row.id, "done" if paid else "failed")
            except Exception as error:  # of a disk that is full: the next start finds it running
                self.trade.say(f"the ledger cannot be written: {type(error).__name__}: {error}")
        purchase.bought, purchase.problem = bought, None if bought is not None else problem
        if purchase.problem is not None or not purchase.waiting:
            self._forget(purchase)  # the ledger has what is to be known of it
        purchase.tell()

    async def _is_paid(self, purchase: OpenPurchase) -> bool:
        return any(job.state == "done" for job in await self.trade.ledger.jobs_of(purchase.row.id))

    async def _read_again(self, purchase: OpenPurchase) -> Bought:
        jobs = await self.trade.ledger.jobs_of(purchase.row.id)
        for job in jobs:
            if job.state == "done":
                purchase.job = job
                return await self._attempts.opened(job, await self.trade.client.jobs.get(job.job_id))
        for job in jobs:
            given = await self.trade.ledger.given(job.job_id)
            if given is not None:
                purchase.job = job
                return await self._attempts.given_again(job, given)
        raise Problem(409, "what was bought under this idempotency key has no result", code="no_result")

    async def _bought(self, purchase: OpenPurchase, job: LedgerJob | None) -> Bought:
        """The first attempt that succeeds; several at a time only where hedging is set."""
        buying = self.trade.settings.buying
        began, launched, running = anyio.current_time(), 0, 0
        tried = purchase.tried
        last: Problem | None = None
        send, receive = anyio.create_memory_object_stream[Bought | _Failed](buying.attempts + 1)

        async def launch() -> None:
            nonlocal launched, running
            if purchase.wanted is None:
                raise last or Problem(503, "the job of before a restart failed: ask again", retry=True)
            wanted = purchase.wanted
            offer = await self.trade.prices.offer(wanted.model, wanted.rule, tried)
            tried.add(offer.provider)
            launched, running = launched + 1, running + 1
            purchase.more = launched < buying.attempts and not late()
            self.trade.start("attempt", self._attempt, purchase, wanted, offer, send)

        def late() -> bool:
            return anyio.current_time() - began > buying.retry_seconds

        async with send, receive:
            if job is not None:
                tried.add(job.provider)
                purchase.more = buying.attempts > 1
                self.trade.prices.load.chosen(job.provider)
                self.trade.start("attempt", self._attempt_before, purchase, job, send)
                launched = running = 1
            else:
                await launch()
            while True:
                hedging = buying.hedge_seconds > 0 and running == 1 and launched < buying.attempts
                outcome: Bought | _Failed | None = None
                with anyio.move_on_after(buying.hedge_seconds if hedging else _FOREVER):
                    outcome = await receive.receive()
                if outcome is None:
                    with suppress(NoProvider):  # a hedge that nobody takes is none: the first attempt goes on
                        await launch()
                    continue
                running -= 1
                if isinstance(outcome, Bought):
                    return outcome
                last = outcome.error
                self._learn(outcome, tried)
                if running:
                    continue
                if not outcome.again or late() or launched >= buying.attempts or purchase.abandoned:
                    raise last
                await anyio.sleep(outcome.pause)
                try:
                    await launch()
                except NoProvider:
                    raise last from None  # why the only one that there was failed says more

    def _learn(self, outcome: _Failed, tried: set[int]) -> None:
        if outcome.blame:
            self.trade.prices.load.exclude(outcome.provider, unclaimed=outcome.unclaimed)
        else:
            tried.discard(outcome.provider)

    async def _attempt(self, purchase: OpenPurchase, wanted: Wanted, offer: MarketOffer, send: Outcomes) -> None:
        async def attempt() -> Bought:
            try:
                job, prepared = await self._attempts.posted(purchase, wanted, offer)
            except BaseException:
                self.trade.prices.load.ended(offer.provider, claimed=False)
                raise
            return await self._attempts.followed(purchase, job, prepared)

        await _tell(send, await self._outcome(offer.provider, purchase, attempt))

    async def _attempt_before(self, purchase: OpenPurchase, job: LedgerJob, send: Outcomes) -> None:
        async def attempt() -> Bought:
            return await self._attempts.followed(purchase, job, None)

        await _tell(send, await self._outcome(job.provider, purchase, attempt))

    async def _outcome(
        self, provider: int, purchase: OpenPurchase, attempt: Callable[[], Awaitable[Bought]]
    ) -> Bought | _Failed:
        """Never raises: an attempt is a task beside others."""
        try:
            return await attempt()
        except Problem as problem:
            return _Failed(problem, provider, again=False)
        except PostRefused as refused:  # says nothing of its provider
            return _Failed(problem_of(refused, refused.job_id), provider, again=False)
        except JobFailed as failed:
            unclaimed = failed.job_id in purchase.unclaimed
            # One that was taken back since nobody wanted it any more says nothing of its provider.
            blame = unclaimed or failed.code != "cancelled"
            told = problem_of(failed, failed.job_id)
            return _Failed(told, provider, again=not purchase.ended, blame=blame, unclaimed=unclaimed)
        except OverCeiling as over:  # charges went up since they were learned
            self.trade.prices.forget_charges()
            return _Failed(problem_of(over), provider, again=True)
        except SvcError as error:
            job_id = None if purchase.job is None else purchase.job.job_id
            again = isinstance(error, ApiError) and error.retryable
            return _Failed(problem_of(error, job_id), provider, again=again, pause=_PAUSE_SECONDS)
        except Exception as error:
            self.trade.say(f"an attempt failed unexpectedly: {type(error).__name__}: {error}")
            return _Failed(unexpected(), provider, again=False)


def _require_same(row: LedgerPurchase, digest: str) -> None:
    if row.digest != digest:
        message = "this idempotency key was used for another request: each request has its own"
        raise invalid(message, "idempotency-key", "idempotency_key_reused")


async def _tell(send: Outcomes, outcome: Bought | _Failed) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # another attempt was faster
        await send.send(outcome)
