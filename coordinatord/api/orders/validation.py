"""Checks of an order, its payment and its container.

    order_faults       terms, signature                    from the body alone
    payment_faults     amount, payer's signature           from the body and the registry's fees
    container_faults   inline container matches `c`        from the body; hashing
    upload_fault       upload matches `c`                  from the file's row
    find_faults        model, window, payer without code   from one request to the node

`OrderChecks.find_failures` runs the last four for one order, and checks the owner's budget and balance. POST /v1/jobs
stops at the first failure. POST /v1/jobs/check reports all failures. Batches run the same checks on hundreds of lines.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
from anyio import to_thread

from common import quotes
from common.api import limits
from common.artifacts import decode_error_name
from common.container import check_commitment
from common.domains import Domains
from common.messages.payments import packed_job_payment
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.book.reads import MarketWindows
from coordinatord.api.files.files import Uploads
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders import faults
from coordinatord.api.orders.bodies import OrderBody, PaidOrder, to_paid_order
from coordinatord.api.orders.faults import Fault
from coordinatord.base.clock import MAX_ORDER_LIFETIME_S, Clock
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import PaymentToken, decode_balance
from coordinatord.chain.relayer.budgets import AdmittedRequest, GasBudgets
from coordinatord.chain.relayer.outbox_sql import PaymentPromise, RelayKind
from coordinatord.chain.relayer.relaying import RefusedByChain
from coordinatord.chain.relayer.role import raise_if_role_lacking
from coordinatord.chain.relayer.solvency import INSUFFICIENT_BALANCE, SolvencyChecks, insufficient_balance
from coordinatord.chain.rpc.client import RpcCall
from coordinatord.chain.rpc.views import Reverted, View, is_true, read_many

MAX_BYTES_HASHED_IN_LOOP: Final = 1 << 16  # a longer container is hashed in a thread
# Content id of a trial post, which the node only simulates. The order's container is not stored yet, and the registry
# does not check the id.
TRIAL_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
DUPLICATE_JOB: Final = "DuplicateJob"


def order_faults(body: OrderBody, domains: Domains, now: float) -> Iterator[Fault]:
    """Yield the faults of the order alone: of each of its terms, then of its signature."""
    if quotes.derive_job_id(body.owner, body.c) != body.job_id:
        yield faults.WRONG_JOB_ID
    if not now < body.expires_at:
        yield faults.EXPIRED
    if body.expires_at > now + MAX_ORDER_LIFETIME_S:
        yield faults.EXPIRES_TOO_LATE
    if body.sla_secs > limits.MAX_SLA_S:
        yield faults.SLA_TOO_LONG
    try:
        quotes.cap(body.rate_in, body.rate_out, body.units_in, body.units_out)
    except Refused as refused:
        yield faults.new_fault(refused.message, refused.param, refused.code)
    if domains.jobs.signer(body, body.signature) != body.owner:
        yield faults.WRONG_SIGNER


def payment_faults(paid: PaidOrder, domains: Domains, registry: bytes, terms: FeeTerms) -> Iterator[Fault]:
    """Yield the faults of the payment: of its amount under the registry's terms, then of its signature."""
    body = paid.order
    amount = _required_amount(body, terms)
    if amount is not None and paid.amount != amount:
        yield faults.WRONG_AMOUNT
    payment = packed_job_payment(body.owner, registry, paid.amount, body.expires_at, body.job_id)
    if domains.token.packed_signer(payment, paid.payment) != body.owner:
        yield faults.WRONG_PAYER


def _required_amount(body: OrderBody, terms: FeeTerms) -> int | None:
    """Return the amount that the registry requires, or None for a price too large for the contract."""
    try:
        return quotes.amount(body.rate_in, body.rate_out, body.units_in, body.units_out, terms)
    except Refused:
        return None


def container_faults(body: OrderBody) -> Iterator[Fault]:
    """Yield the fault of an inline container that is malformed or does not match the commitment `c`. Run this in a
    thread for a long container, because hashing takes long."""
    if body.container is None:
        return
    try:
        check_commitment(body.container, body.c)
    except Refused as refused:
        # A container of a wrong length cannot match any commitment.
        code = "commitment_mismatch" if refused.code == "bad_container" else refused.code
        yield faults.new_fault(refused.message, "container", code)


def upload_fault(body: OrderBody, upload: FileRow | None) -> Fault | None:
    """Return the fault of the upload that `container_cid` names, or None. `upload` is None if the owner has no live
    upload with that id."""
    if upload is None:
        return faults.UNKNOWN_UPLOAD
    return None if upload.commitment == body.c else faults.WRONG_UPLOAD


@attrs.frozen(slots=True)
class ChainFacts:
    """Answers of the chain about orders."""

    models: Collection[int]  # enabled models
    windows: Collection[int] | None  # allowed windows; None when they were not read
    payers: Collection[bytes]  # owners without contract code
    balances: Mapping[bytes, int]  # missing for owners with an unknown balance
    refusal: Reverted | None  # revert of the trial post

    def find_faults(self, body: OrderBody) -> Iterator[Fault]:
        if body.model_id not in self.models:
            yield faults.MODEL_NOT_ENABLED
        if self.windows is not None and body.sla_secs not in self.windows:
            yield faults.SLA_NOT_ALLOWED
        if body.owner not in self.payers:
            yield faults.PAYER_HAS_CODE


async def read_chain_facts(
    registry: JobRegistry,
    token: PaymentToken,
    bodies: Sequence[OrderBody],
    *,
    windows: bool = False,
    trial: View | None = None,
) -> ChainFacts:
    """Read each model, payer and balance once, in one request. With `windows`, also read the allowed windows. `trial`
    is a post for the node to simulate. Omit both for a batch: the relayer simulates each post, and the simulation also
    checks the window."""
    models = sorted({body.model_id for body in bodies})
    slas = sorted({body.sla_secs for body in bodies}) if windows else []
    owners = sorted({body.owner for body in bodies})
    views: list[View | RpcCall] = [registry.model_enabled_view(model_id) for model_id in models]
    views += [registry.sla_allowed_view(sla) for sla in slas]
    views += [RpcCall("eth_getCode", (hex_of(owner), "latest")) for owner in owners]
    views += [trial] if trial is not None else []
    views += [token.balance_view(owner) for owner in owners]
    answers = iter(await read_many(registry.rpc, views, "payer_code_read"))
    enabled = {model for model in models if is_true(next(answers))}
    allowed = {sla for sla in slas if is_true(next(answers))}
    without_code = {owner for owner in owners if next(answers) == b""}
    trial_answer = next(answers) if trial is not None else None
    balances = {owner: decode_balance(next(answers)) for owner in owners}
    return ChainFacts(
        models=enabled,
        windows=allowed if windows else None,
        payers=without_code,
        balances={owner: balance for owner, balance in balances.items() if balance is not None},
        refusal=trial_answer if isinstance(trial_answer, Reverted) else None,
    )


Failure: TypeAlias = Fault | PredictedRefusal | RefusedByChain | Retryable
"""Failed check. `Retryable` means that the owner's gas budget has no room now."""


@attrs.define(slots=True)
class Findings:
    """Data that the checks read about an order. `fee_terms` is read first. The rest is complete only if no check
    failed."""

    fee_terms: FeeTerms
    upload: FileRow | None = None
    admitted_request: AdmittedRequest | None = None
    payment_promise: PaymentPromise | None = None


@attrs.frozen(slots=True)
class OrderChecks:
    domains: Domains
    registry: JobRegistry
    solvency: SolvencyChecks
    budgets: GasBudgets
    relayer: bytes
    uploads: Uploads
    windows: MarketWindows
    clock: Clock

    def order_faults(self, body: OrderBody) -> Iterator[Fault]:
        return order_faults(body, self.domains, self.clock())

    async def find_failures(
        self, body: OrderBody, findings: Findings, *, report_all: bool = False, is_valid: bool = True
    ) -> AsyncGenerator[Failure, None]:
        """Run the checks that follow `order_faults`, cheapest first. Raise Retryable if a check cannot be decided now.

        `report_all` means that the caller collects all failures, and `is_valid` that no check has failed yet. The post
        is simulated only for a valid order, because the revert of an invalid post would only repeat a known failure."""
        paid = to_paid_order(body)
        for fault in (
            payment_faults(paid, self.domains, self.registry.address, findings.fee_terms) if paid is not None else ()
        ):
            is_valid = False
            yield fault
        try:
            findings.admitted_request = await self.budgets.admit(RelayKind.POST, body.owner, body.job_id)
        except Retryable as error:
            if error.kind != "busy":
                raise
            yield error  # the order is over its owner's gas budget
        for fault in await self._container_faults(paid, findings):
            is_valid = False
            yield fault
        trial = None
        if paid is not None and is_valid:
            trial = self.registry.simulation_view(paid.calldata(TRIAL_CID), self.relayer)
        facts = await read_chain_facts(self.registry, self.solvency.token, [body], windows=True, trial=trial)
        for fault in facts.find_faults(body):
            is_valid = False
            yield faults.sla_not_allowed(await self.windows.read()) if fault is faults.SLA_NOT_ALLOWED else fault
        if report_all and await self.registry.read_job(body.job_id) is not None:
            yield RefusedByChain(DUPLICATE_JOB, b"")
            return
        amount = paid.amount if paid is not None else _required_amount(body, findings.fee_terms)
        balance = facts.balances.get(body.owner)
        if amount is None:
            return
        if facts.refusal is not None and is_valid:
            refused = _classify_revert(facts.refusal, body.owner, amount, balance)
            yield refused
            if isinstance(refused, PredictedRefusal):  # the payment check below would fail for the same reason
                return
        if findings.admitted_request is not None:
            findings.payment_promise = await self.solvency.promise_payment(
                findings.admitted_request.standing, body.owner, amount, balance
            )
            if findings.payment_promise is None and not await self.budgets.is_under_way(body.job_id):
                yield insufficient_balance(body.owner, amount, balance)

    async def _container_faults(self, paid: PaidOrder | None, findings: Findings) -> list[Fault]:
        if paid is None:
            return []
        body = paid.order
        if body.container is not None and len(body.container) > MAX_BYTES_HASHED_IN_LOOP:
            failed = await to_thread.run_sync(list, container_faults(body))
        else:
            failed = [*container_faults(body)]
        if body.container_cid is not None:
            findings.upload = await self.uploads.find_input_upload(body.owner, body.container_cid)
            fault = upload_fault(body, findings.upload)
            failed += [fault] if fault is not None else []
        return failed


def _classify_revert(
    refusal: Reverted, owner: bytes, amount: int, balance: int | None
) -> PredictedRefusal | RefusedByChain:
    """Return the failure that the revert of a trial post means. Raise Retryable if the relayer lacks its role."""
    name = decode_error_name(refusal.data)
    raise_if_role_lacking(name)
    return (
        insufficient_balance(owner, amount, balance)
        if name == INSUFFICIENT_BALANCE
        else RefusedByChain(name, refusal.data)
    )
