"""POST /v1/jobs: from a body to a posted job.

Cheapest first: what the body alone decides, then signatures, then one request to the chain for all that it decides,
then the store, then the relay. The quote needs the order's signature and the fee terms, nothing else.
"""

from typing import Final, TypeAlias

import attrs
from anyio import to_thread

from common.artifacts import decode_error
from common.domains import Domains
from common.messages.jobs import Order
from common.quotes import FeeTerms, Quote
from coordinatord.api.book import candidates_sql, liveness_sql
from coordinatord.api.book.candidates_sql import Demand, LiveAsk
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.reads import MarketWindows
from coordinatord.api.files.files import Uploads
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders.validation import (
    SLA_NOT_ALLOWED,
    UNKNOWN_UPLOAD,
    WRONG_AMOUNT,
    MarketProbe,
    OrderBody,
    Paid,
    ask_chain,
    check_inline,
    judge,
    order_checks,
    payment_checks,
    require,
    sla_not_allowed,
    submission_of,
    upload_check,
)
from coordinatord.base import metrics
from coordinatord.base.clock import Clock
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.base.wake import Mailbox
from coordinatord.chain.contracts.job_registry import JobRegistry, PostedOrder
from coordinatord.chain.relayer.budgets import Admitted, GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, Promise, Queued, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.chain.relayer.role import require_role
from coordinatord.chain.relayer.solvency import INSUFFICIENT_BALANCE, Promises, insufficient
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins.containers import Containers, Holding, container_key

_LARGE: Final = 1 << 16  # hashing more than this is left to a thread
# Stands in for a content id while the chain is asked whether it would take the post at all.
ANY_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@attrs.frozen(slots=True)
class Matchmaker:
    """Live providers for an order, cheapest first, and the note of who was picked."""

    database: Database
    liveness_ms: int
    candidates: int

    async def probe(self, probe: MarketProbe) -> list[LiveAsk]:
        """Every live ask for the model and window, ranked."""
        demand = Demand(probe.model_id, probe.sla_secs, probe.units_in, probe.units_out, probe.designated)
        return await candidates_sql.read_candidates(self.database, demand, self.liveness_ms, None)

    async def matching(self, order: OrderBody) -> list[LiveAsk]:
        """The cheapest live providers whose ask the order clears."""
        demand = Demand(
            order.model_id,
            order.sla_secs,
            order.units_in,
            order.units_out,
            order.designated,
            order.rate_in,
            order.rate_out,
        )
        return await candidates_sql.read_candidates(self.database, demand, self.liveness_ms, self.candidates)

    async def picked(self, order: OrderBody) -> None:
        """Note that an order was accepted: its designated provider goes behind others of the same price."""
        if order.designated:
            await liveness_sql.mark_picked(self.database, order.designated, order.model_id)


@attrs.frozen(slots=True)
class Probed:
    candidates: list[LiveAsk]


@attrs.frozen(slots=True)
class QuotedOrder:
    """A quote; `changed` when it answers a submission whose amount is not the current one."""

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
class Posting:
    """A submission that passed every check. `terms`: those that its amount was checked against. `wait`: for its
    block."""

    paid: Paid
    terms: FeeTerms
    admitted: Admitted
    promise: Promise | None
    wait: bool

    def offered(self, relay_id: int, task_cid: str) -> PendingJob:
        body = self.paid.body
        order = Order(**{field.name: getattr(body, field.name) for field in attrs.fields(Order)})
        posted = PostedOrder(order, body.owner, self.terms)
        return PendingJob(relay_id, posted, body.signature, self.paid.payment, task_cid)


@attrs.frozen(slots=True)
class Submissions:
    domains: Domains
    registry: JobRegistry
    promises: Promises
    budgets: GasBudgets
    relayer: bytes
    market: Matchmaker
    offered: Mailbox[PendingJob]
    containers: Containers
    uploads: Uploads
    relaying: Relaying
    windows: MarketWindows
    clock: Clock

    async def submit(self, body: MarketProbe | OrderBody, *, wait: bool = True) -> SubmitOutcome | Queued:
        """Raises Refused for what the specification answers with 400, Retryable for errors outside. Without `wait`, a
        post is answered with `Queued` once it is in the outbox."""
        if isinstance(body, MarketProbe):
            return Probed(await self.market.probe(body))
        order = submission_of(body)
        require(order, *order_checks(self.domains, self.clock()))
        terms = await self.registry.fees()
        if not isinstance(order, Paid):
            return await self._quoted(body, terms, changed=False)
        [fault] = judge([order], payment_checks(self.domains, self.registry.address, terms))
        if fault is WRONG_AMOUNT:
            return await self._quoted(body, terms, changed=True)
        if fault is not None:
            raise fault.refused()
        return await self._submit(order, terms, wait=wait)

    async def _quoted(self, body: OrderBody, terms: FeeTerms, *, changed: bool) -> QuotedOrder:
        return QuotedOrder(body, body.quote(terms), terms.fee_bps, await self.market.matching(body), changed)

    async def _submit(self, paid: Paid, terms: FeeTerms, *, wait: bool) -> SubmitOutcome | Queued:
        body, token = paid.body, self.promises.token
        admitted = await self.budgets.admit(RelayKind.POST, body.owner, body.job_id)
        upload = await self._check_container(paid)
        trial = self.registry.would_accept(paid.calldata(ANY_CID), self.relayer)
        facts = await ask_chain(self.registry, token, [paid], trial=trial)
        [fault] = judge([paid], [facts.check])
        if fault is SLA_NOT_ALLOWED:
            fault = sla_not_allowed(await self.windows.read())
        if fault is not None:
            raise fault.refused()
        if facts.refusal is not None:
            name = decode_error(facts.refusal.data)
            require_role(name)
            if name == INSUFFICIENT_BALANCE:
                return insufficient(body.owner, paid.amount, facts.balances.get(body.owner))
            return RefusedByChain(name, facts.refusal.data)
        balance = facts.balances.get(body.owner)
        promise = await self.promises.promise(admitted.standing, body.owner, paid.amount, balance)
        if promise is None and not await self.budgets.is_under_way(body.job_id):
            metrics.budget_refusals.labels("balance").inc()
            return insufficient(body.owner, paid.amount, balance)
        outcome = await self._post(Posting(paid, terms, admitted, promise, wait), upload)
        if isinstance(outcome, RefusedByChain) and outcome.name == "WrongAmount":
            return await self._quoted(body, await self.registry.fees(), changed=True)  # changed since we read it
        return outcome

    async def _check_container(self, paid: Paid) -> FileRow | None:
        """The upload that the submission names, or None when the container is inline."""
        body = paid.body
        if body.container_cid is not None:
            upload = await self.uploads.find_input(body.owner, body.container_cid)
            require(paid, upload_check({(body.owner, body.container_cid): upload} if upload is not None else {}))
            return upload
        if body.container is not None and len(body.container) > _LARGE:
            await to_thread.run_sync(require, paid, check_inline)
        else:
            require(paid, check_inline)
        return None

    async def _post(self, posting: Posting, upload: FileRow | None) -> Relayed | Queued:
        body = posting.paid.body
        if upload is not None:
            if not await self.uploads.hold(upload, body.job_id):
                raise UNKNOWN_UPLOAD.refused()
            outcome = await self._relay(posting, upload.cid)
            if isinstance(outcome, SubmittedOrder):
                await self.uploads.attach(upload)
        else:
            content = body.container if body.container is not None else b""
            async with self.containers.holding(
                container_key(body.job_id), body.job_id, content, body.owner, bounded=True
            ) as holding:
                outcome = await self._relay(posting, holding.cid)
                _tell(holding, outcome)
        return outcome

    async def _relay(self, posting: Posting, task_cid: str) -> Relayed | Queued:
        paid, admitted = posting.paid, posting.admitted
        body = paid.body
        relay = NewRelay(
            kind=RelayKind.POST,
            subject=body.job_id,
            dedupe=paid.dedupe(task_cid),
            target=self.registry.address,
            calldata=paid.calldata(task_cid),
            priority=Priority.POST,
            signer=body.owner,
            gas_estimate=admitted.spending.estimate,
            spending=admitted.spending,
            promise=posting.promise,
        )
        queued = await self.relaying.submit(relay)
        if not isinstance(queued, Queued):
            return queued
        self.offered.put(posting.offered(queued.id, task_cid))
        if not queued.joined:
            await self.market.picked(body)
        if not posting.wait:
            return queued
        outcome = await self.relaying.wait(queued)
        return SubmittedOrder(body.job_id, task_cid, outcome.tx_hash) if isinstance(outcome, RelayMined) else outcome


def _tell(holding: Holding, outcome: Relayed | Queued) -> None:
    if isinstance(outcome, SubmittedOrder):
        holding.took_effect()
    elif isinstance(outcome, RefusedByChain):
        holding.was_refused()
