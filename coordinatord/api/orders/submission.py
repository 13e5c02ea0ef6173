"""POST /v1/jobs: from a body to a posted job.

    OrderBody ─► order_faults ─► quote, where there is no payment
                              └► failures ─► container ─► outbox ─► outcome

Cheapest first: the body alone, then one request to the node, then the pin store, then the relayer.
"""

from contextlib import aclosing
from typing import TypeAlias

import attrs

from common.messages.jobs import Order
from common.quotes import FeeTerms, Quote
from coordinatord.api.book.candidates_sql import LiveAsk
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, Paid, paid_of
from coordinatord.api.orders.faults import UNKNOWN_UPLOAD, WRONG_AMOUNT, Fault
from coordinatord.api.orders.matchmaker import Matchmaker
from coordinatord.api.orders.validation import Findings, OrderChecks
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.base.wake import Mailbox
from coordinatord.chain.contracts.job_registry import PostedOrder
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, Queued, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.storage.pins.containers import Containers, container_key


@attrs.frozen(slots=True)
class Probed:
    candidates: list[LiveAsk]


@attrs.frozen(slots=True)
class QuotedOrder:
    """Quote. `changed`: the submission had an outdated amount."""

    order: OrderBody
    quote: Quote
    fee_bps: int
    candidates: list[LiveAsk]
    changed: bool


@attrs.frozen(slots=True)
class SubmittedOrder:
    job_id: bytes
    task_cid: str
    tx_hash: bytes


Relayed: TypeAlias = SubmittedOrder | RefusedByChain | RelayBusy | NoReceipt
SubmitOutcome: TypeAlias = Probed | QuotedOrder | WouldRefuse | Relayed


@attrs.frozen(slots=True)
class Submissions:
    checks: OrderChecks
    market: Matchmaker
    offered: Mailbox[PendingJob]
    containers: Containers
    relaying: Relaying

    async def submit(self, body: MarketProbe | OrderBody, *, wait: bool = True) -> SubmitOutcome | Queued:
        """Submit an order. Raise Refused for a 400 of the specification, Retryable for errors of other services.
        Without `wait`, return `Queued` once a post is in the outbox."""
        if isinstance(body, MarketProbe):
            return Probed(await self.market.probe(body))
        for fault in self.checks.order_faults(body):
            raise fault.refused()
        found, paid = Findings(await self.checks.registry.fees()), paid_of(body)
        if paid is None:
            return await self.quoted(body, found.terms)
        async with aclosing(self.checks.failures(body, found)) as failures:
            failure = await anext(failures, None)
        match failure:
            case None:
                outcome = await self._post(paid, found, wait=wait)
            case Fault() if failure is WRONG_AMOUNT:
                return await self.quoted(body, found.terms, changed=True)
            case Fault():
                raise failure.refused()
            case Retryable():
                raise failure
            case WouldRefuse():
                metrics.budget_refusals.labels("balance").inc()
                return failure
            case RefusedByChain():
                return failure
        if isinstance(outcome, RefusedByChain) and outcome.name == "WrongAmount":  # the fees changed since the check
            return await self.quoted(body, await self.checks.registry.fees(), changed=True)
        return outcome

    async def quoted(self, body: OrderBody, terms: FeeTerms, *, changed: bool = False) -> QuotedOrder:
        return QuotedOrder(body, body.quote(terms), terms.fee_bps, await self.market.matching(body), changed)

    async def _post(self, paid: Paid, found: Findings, *, wait: bool) -> Relayed | Queued:
        """Keep the container until the post has ended. Without an answer, the janitor decides about it."""
        body, upload, uploads = paid.body, found.upload, self.checks.uploads
        if upload is not None:
            if not await uploads.hold(upload, body.job_id):
                raise UNKNOWN_UPLOAD.refused()
            outcome = await self._relay(paid, found, upload.cid, wait=wait)
            if isinstance(outcome, SubmittedOrder):
                await uploads.attach(upload)
            return outcome
        key, content = container_key(body.job_id), body.container or b""
        async with self.containers.holding(key, body.job_id, content, body.owner, bounded=True) as holding:
            outcome = await self._relay(paid, found, holding.cid, wait=wait)
            if isinstance(outcome, SubmittedOrder):
                holding.took_effect()
            elif isinstance(outcome, RefusedByChain):
                holding.was_refused()
            return outcome

    async def _relay(self, paid: Paid, found: Findings, task_cid: str, *, wait: bool) -> Relayed | Queued:
        if found.admitted is None:
            raise AssertionError("a submission without failures was not admitted")
        body, spending = paid.body, found.admitted.spending
        queued = await self.relaying.submit(
            NewRelay(
                kind=RelayKind.POST,
                subject=body.job_id,
                dedupe=paid.dedupe(task_cid),
                target=self.checks.registry.address,
                calldata=paid.calldata(task_cid),
                priority=Priority.POST,
                signer=body.owner,
                gas_estimate=spending.estimate,
                spending=spending,
                promise=found.promise,
            )
        )
        if not isinstance(queued, Queued):
            return queued
        order = Order(**{field.name: getattr(body, field.name) for field in attrs.fields(Order)})
        posted = PostedOrder(order, body.owner, found.terms)
        self.offered.put(PendingJob(queued.id, posted, body.signature, paid.payment, task_cid))
        if not queued.joined:
            await self.market.picked(body)
        if not wait:
            return queued
        outcome = await self.relaying.wait(queued)
        return SubmittedOrder(body.job_id, task_cid, outcome.tx_hash) if isinstance(outcome, RelayMined) else outcome
