"""POST /v1/jobs: turns a body into a posted job.

    OrderBody ─► order_faults ─► quote, if there is no payment
                              └► failures ─► container ─► outbox ─► outcome

Cheap steps come first: the body alone, then one request to the node, then the pin store, then the relayer.
"""

from contextlib import aclosing
from typing import TypeAlias

import attrs

from common.messages.jobs import Order
from common.quotes import FeeTerms, Quote
from common.scalars import hex_of
from common.tracing import spans
from coordinatord.api.book.candidates_sql import LiveAsk
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, PaidOrder, to_paid_order
from coordinatord.api.orders.faults import UNKNOWN_UPLOAD, WRONG_AMOUNT, Fault
from coordinatord.api.orders.matchmaker import Matchmaker
from coordinatord.api.orders.validation import Findings, OrderChecks
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.base.wake import Mailbox
from coordinatord.chain.contracts.job_registry import PostedOrder
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.storage.pins.containers import Containers, container_key


@attrs.frozen(slots=True)
class ProbeAnswer:
    candidates: list[LiveAsk]


@attrs.frozen(slots=True)
class QuotedOrder:
    """Quote of an order. `amount_changed` means that the submission had an outdated amount."""

    order: OrderBody
    quote: Quote
    fee_bps: int
    candidates: list[LiveAsk]
    amount_changed: bool


@attrs.frozen(slots=True)
class SubmittedOrder:
    job_id: bytes
    task_cid: str
    tx_hash: bytes


RelayedOutcome: TypeAlias = SubmittedOrder | RefusedByChain | RelayBusy | NoReceipt
SubmitOutcome: TypeAlias = ProbeAnswer | QuotedOrder | PredictedRefusal | RelayedOutcome


@attrs.frozen(slots=True)
class SubmissionService:
    order_checks: OrderChecks
    matchmaker: Matchmaker
    offer_mailbox: Mailbox[PendingJob]
    containers: Containers
    relaying: Relaying

    async def submit(self, body: MarketProbe | OrderBody, *, wait: bool = True) -> SubmitOutcome | QueuedRelay:
        """Submit an order. Raise Refused for an order that is answered with 400, and Retryable for errors of other
        services. Without `wait`, return QueuedRelay once the post is in the outbox."""
        if isinstance(body, MarketProbe):
            return ProbeAnswer(await self.matchmaker.find_asks(body))
        for fault in self.order_checks.order_faults(body):
            raise fault.as_refused()
        findings, paid = Findings(await self.order_checks.registry.read_fees()), to_paid_order(body)
        if paid is None:
            return await self.quote_order(body, findings.fee_terms)
        with spans.span("submission", job=hex_of(body.job_id), model_id=body.model_id):
            return await self._submit(body, paid, findings, wait=wait)

    async def _submit(
        self, body: OrderBody, paid: PaidOrder, findings: Findings, *, wait: bool
    ) -> SubmitOutcome | QueuedRelay:
        async with aclosing(self.order_checks.find_failures(body, findings)) as failures:
            failure = await anext(failures, None)
        match failure:
            case None:
                outcome = await self._post_order(paid, findings, wait=wait)
            case Fault() if failure is WRONG_AMOUNT:
                return await self.quote_order(body, findings.fee_terms, changed=True)
            case Fault():
                raise failure.as_refused()
            case Retryable():
                raise failure
            case PredictedRefusal():
                metrics.budget_refusals.labels("balance").inc()
                return failure
            case RefusedByChain():
                return failure
        if isinstance(outcome, RefusedByChain) and outcome.name == "WrongAmount":  # the fees changed since the check
            return await self.quote_order(body, await self.order_checks.registry.read_fees(), changed=True)
        return outcome

    async def quote_order(self, body: OrderBody, terms: FeeTerms, *, changed: bool = False) -> QuotedOrder:
        return QuotedOrder(body, body.quote(terms), terms.fee_bps, await self.matchmaker.find_asks(body), changed)

    async def _post_order(self, paid: PaidOrder, findings: Findings, *, wait: bool) -> RelayedOutcome | QueuedRelay:
        """Post the order. Hold the container until the post has ended. If the outcome of the post stays unknown, the
        janitor later decides whether to remove the container."""
        body, upload, uploads = paid.order, findings.upload, self.order_checks.uploads
        if upload is not None:
            if not await uploads.hold(upload, body.job_id):
                raise UNKNOWN_UPLOAD.as_refused()
            outcome = await self._relay_post(paid, findings, upload.cid, wait=wait)
            if isinstance(outcome, SubmittedOrder):
                await uploads.attach(upload)
            return outcome
        key, content = container_key(body.job_id), body.container or b""
        async with self.containers.hold_content(key, body.job_id, content, body.owner, check_budget=True) as holding:
            outcome = await self._relay_post(paid, findings, holding.cid, wait=wait)
            if isinstance(outcome, SubmittedOrder):
                holding.mark_effective()
            elif isinstance(outcome, RefusedByChain):
                holding.mark_refused()
            return outcome

    async def _relay_post(
        self, paid: PaidOrder, findings: Findings, task_cid: str, *, wait: bool
    ) -> RelayedOutcome | QueuedRelay:
        if findings.admitted_request is None:
            raise AssertionError("the checks found no failure but did not admit the submission")
        body, spending = paid.order, findings.admitted_request.spending
        queued = await self.relaying.submit(
            NewRelay(
                kind=RelayKind.POST,
                subject=body.job_id,
                dedupe=paid.dedupe_digest(task_cid),
                target=self.order_checks.registry.address,
                calldata=paid.calldata(task_cid),
                priority=Priority.POST,
                signer=body.owner,
                gas_estimate=spending.gas_estimate,
                spending=spending,
                promise=findings.payment_promise,
            )
        )
        if not isinstance(queued, QueuedRelay):
            return queued
        order = Order(**{field.name: getattr(body, field.name) for field in attrs.fields(Order)})
        posted = PostedOrder(order, body.owner, findings.fee_terms)
        self.offer_mailbox.put(PendingJob(queued.id, posted, body.signature, paid.payment, task_cid))
        if not queued.is_duplicate:
            await self.matchmaker.record_pick(body)
        if not wait:
            return queued
        outcome = await self.relaying.wait(queued)
        return SubmittedOrder(body.job_id, task_cid, outcome.tx_hash) if isinstance(outcome, RelayMined) else outcome
