"""Validate submissions: their bodies, and every check of an order, its payment and its container.

`POST /v1/jobs` judges one submission, a batch hundreds of its lines at a time. A check takes any number of submissions
and tells of each whether it fails; `judge` runs checks in order, each on those that passed the ones before it.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from common import quotes
from common.api import errors, limits
from common.api.fields import (
    ADDRESS,
    BYTES32,
    SIGNATURE,
    UINT32,
    UINT64,
    UINT128,
    UINT256,
    Base64,
    Text,
    read_object,
    wire,
)
from common.api.worked_order import ORDER_SIGNATURE
from common.container import check_container
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.jobs import Order
from common.messages.payments import packed_job_payment
from common.quotes import FeeTerms, Quote
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.files.files_sql import FileRow, Named
from coordinatord.base.clock import ORDER_LIFE
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import PaymentToken, read_balance
from coordinatord.chain.rpc.client import RpcCall
from coordinatord.chain.rpc.views import Reverted, View, is_true, read_many

INLINE_BYTES: Final = limits.INLINE_BYTES  # largest container or result inside a JSON body, decoded
CID_CHARACTERS: Final = 128
LONGEST_SLA: Final = limits.LONGEST_SLA


@attrs.frozen(slots=True)
class MarketProbe:
    """A question to the market: its live asks for a model, a window and so many units. Unsigned."""

    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    designated: int = wire(UINT32, "id of the one provider that is asked; 0 for all", optional=True, default=0)


@attrs.frozen(slots=True)
class OrderBody(Order):
    """An order that its owner signed; with `auth_sig`, `amount` and a container it is to be posted. (It is the order
    itself, as the wire names its fields: a second object for every line of a batch would say the same.)"""

    c: bytes = wire(BYTES32)
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    designated: int = wire(UINT32)
    expires_at: int = wire(
        UINT64, "last second in which the job may be claimed, in Unix seconds: at most 86400 s ahead"
    )
    owner: bytes = wire(ADDRESS)
    job_id: bytes = wire(BYTES32)
    signature: bytes = wire(SIGNATURE, "the owner's Order signature", example=ORDER_SIGNATURE)
    auth_sig: bytes | None = wire(SIGNATURE, optional=True)
    amount: int | None = wire(UINT256, "the quoted amount, in base units of the payment token", optional=True)
    container: bytes | None = wire(Base64(INLINE_BYTES), optional=True)
    container_cid: str | None = wire(
        Text(CID_CHARACTERS), "`svc.cid` of an `input` upload by the owner, in place of `container`", optional=True
    )

    def quote(self, terms: FeeTerms) -> Quote:
        return quotes.quote(self.rate_in, self.rate_out, self.units_in, self.units_out, terms)


def read_submission(body: Mapping[str, object]) -> MarketProbe | OrderBody:
    """Read a body: a probe names neither rate; anything else is an order and must be whole."""
    if body.get("rate_in") is None and body.get("rate_out") is None:
        return read_object(MarketProbe, body)
    order = read_object(OrderBody, body)
    for fault in shape_faults(order):
        raise fault
    return order


def shape_faults(body: OrderBody) -> Iterator[Refused]:
    """Payment and container come together, and the container in one way."""
    has_container = body.container is not None or body.container_cid is not None
    if body.auth_sig is None:
        if has_container:
            yield Refused("a container is sent together with auth_sig", "container", "container_without_payment")
        return
    if not has_container:
        yield Refused("auth_sig needs container or container_cid", "container", "container_required")
    if body.container is not None and body.container_cid is not None:
        yield Refused("container and container_cid exclude each other", "container_cid", "container_ambiguous")
    if body.amount is None:
        yield Refused("amount is required with auth_sig", "amount")


@attrs.frozen(slots=True)
class Submission:
    """An order, signed by its owner."""

    body: OrderBody


@attrs.frozen(slots=True)
class Paid(Submission):
    """An order with its payment and its container: it is to be posted."""

    payment: bytes
    amount: int

    def costs(self, terms: FeeTerms) -> int:
        """The amount that the registry asks under these terms."""
        body = self.body
        return quotes.amount(body.rate_in, body.rate_out, body.units_in, body.units_out, terms)

    def calldata(self, task_cid: str) -> bytes:
        """The call that posts it, with its container under this content id."""
        body = self.body
        return job_registry.post(
            body,
            body.owner,
            amount=self.amount,
            task_cid=task_cid,
            order_signature=body.signature,
            payment=self.payment,
        )

    def dedupe(self, task_cid: str) -> bytes:
        """Digest by which two submissions are one: terms, amount and container, not their signature bytes."""
        amount = self.amount.to_bytes(32, "big")
        return hashlib.sha256(b"post" + self.body.job_id + struct_hash(self.body) + amount + task_cid.encode()).digest()


def submission_of(body: OrderBody) -> Submission:
    """Paid when the body has a payment."""
    if body.auth_sig is None or body.amount is None:
        return Submission(body)
    return Paid(body, body.auth_sig, body.amount)


_LINE: Final = "invalid_line"  # of a batch: whatever has no code of its own


@attrs.frozen(slots=True)
class Fault:
    """A check that a submission fails, as `POST /v1/jobs` answers it.

    `line_code` names it in a batch's error file, where every error has a code."""

    message: str
    param: str | None
    code: str | None
    line_code: str

    def refused(self) -> Refused:
        return Refused(self.message, self.param, self.code)

    @property
    def remedy(self) -> str:
        """What the tables of errors say to do about it."""
        if self.code is not None:
            return errors.CODED[self.code].remedy
        if self.line_code != _LINE:
            return errors.LINE_ERRORS[self.line_code][1]
        return errors.UNCODED[400].remedy


def _fault(message: str, param: str | None, code: str | None = None, *, line_code: str | None = None) -> Fault:
    return Fault(message, param, code, line_code or code or _LINE)


_EXPIRY: Final = f"expires_at must be in the next {ORDER_LIFE} seconds"
WRONG_JOB_ID: Final = _fault("job_id must be keccak256(owner ‖ c)", "job_id")
EXPIRED: Final = _fault(_EXPIRY, "expires_at", line_code="order_expired")
EXPIRES_TOO_LATE: Final = _fault(_EXPIRY, "expires_at", line_code="expiry_too_far")
SLA_TOO_LONG: Final = _fault(f"sla_secs must be at most {LONGEST_SLA}", "sla_secs", line_code="sla_too_long")
WRONG_SIGNER: Final = _fault("signature does not recover to owner", "signature", "invalid_order_signature")
WRONG_AMOUNT: Final = _fault(  # `POST /v1/jobs` answers it with a new quote
    "amount must be cap + fee + gas_fee as they are now", "amount", line_code="insufficient_payment"
)
WRONG_PAYER: Final = _fault("auth_sig does not recover to owner", "auth_sig", "invalid_payment_signature")
UNKNOWN_UPLOAD: Final = _fault(
    "container_cid must name a live input upload of the owner", "container_cid", "unknown_container"
)
WRONG_UPLOAD: Final = _fault("the upload does not reproduce c", "container_cid", "commitment_mismatch")
MODEL_NOT_ENABLED: Final = _fault("model_id must be an enabled model", "model_id", line_code="invalid_model")
SLA_NOT_ALLOWED: Final = _fault("sla_secs must be one of `windows` of GET /evm/chain", "sla_secs")
PAYER_HAS_CODE: Final = _fault("owner has contract code; pay from an account without code", "owner", "payer_has_code")


def sla_not_allowed(windows: Sequence[int] | None) -> Fault:
    """The refusal of a window, with those that the market takes where they are known."""
    if not windows:
        return SLA_NOT_ALLOWED
    named = ", ".join(map(str, windows))
    message = f"sla_secs must be a window that the market takes: one of {named} (`windows` of GET /evm/chain)"
    return attrs.evolve(SLA_NOT_ALLOWED, message=message)


S = TypeVar("S")
Verdicts = Sequence[Fault | None]
Check = Callable[[Sequence[S]], Verdicts]


def judge(submissions: Sequence[S], checks: Sequence[Check[S]]) -> list[Fault | None]:
    """The first check that each submission fails, or None."""
    verdicts: list[Fault | None] = [None] * len(submissions)
    standing = list(range(len(submissions)))
    for check in checks:
        found = check([submissions[place] for place in standing])
        for place, fault in zip(standing, found, strict=True):
            verdicts[place] = fault
        standing = [place for place in standing if verdicts[place] is None]
    return verdicts


def require(submission: S, *checks: Check[S]) -> None:
    """Raise the first check that it fails."""
    [fault] = judge([submission], checks)
    if fault is not None:
        raise fault.refused()


def order_checks(domains: Domains, now: float) -> list[Check[Submission]]:
    """Checks of the order alone: its terms, then its signature."""
    return [
        lambda orders: [next(terms_faults(one.body, now), None) for one in orders],
        signature_check(domains),
    ]


def signature_check(domains: Domains) -> Check[Submission]:
    return lambda orders: _signed(domains, orders)


def payment_checks(domains: Domains, registry: bytes, terms: FeeTerms) -> list[Check[Paid]]:
    """Checks of the payment: its amount under the registry's terms, then its signature."""
    return [
        lambda paid: [None if one.amount == one.costs(terms) else WRONG_AMOUNT for one in paid],
        lambda paid: _paid_by_owner(domains, registry, paid),
    ]


def check_inline(paid: Sequence[Paid]) -> Verdicts:
    """Check that inline containers reproduce `c`. Hashes them: long ones belong in a thread."""
    return [None if one.body.container is None else _wrong_container(one.body.container, one.body.c) for one in paid]


def upload_check(uploads: Mapping[Named, FileRow]) -> Check[Paid]:
    """Check that uploads which are named are live, and reproduce `c`. `uploads`: those that were found."""

    def wrong(body: OrderBody) -> Fault | None:
        if body.container_cid is None:
            return None
        upload = uploads.get((body.owner, body.container_cid))
        if upload is None:
            return UNKNOWN_UPLOAD
        return None if upload.commitment == body.c else WRONG_UPLOAD

    return lambda paid: [wrong(one.body) for one in paid]


@attrs.frozen(slots=True)
class ChainFacts:
    """Answers of the chain about submissions. `slas` is None where they were not asked for."""

    models: Collection[int]  # those that are enabled
    slas: Collection[int] | None  # those that are allowed
    payers: Collection[bytes]  # owners without contract code
    balances: Mapping[bytes, int]  # of owners, as far as the token tells
    refusal: Reverted | None  # of the post that was tried

    def check(self, submissions: Sequence[Submission]) -> Verdicts:
        return [next(self.faults(one.body), None) for one in submissions]

    def faults(self, body: OrderBody) -> Iterator[Fault]:
        if body.model_id not in self.models:
            yield MODEL_NOT_ENABLED
        if self.slas is not None and body.sla_secs not in self.slas:
            yield SLA_NOT_ALLOWED
        if body.owner not in self.payers:
            yield PAYER_HAS_CODE


async def ask_chain(
    registry: JobRegistry, token: PaymentToken, submissions: Sequence[Submission], *, trial: View | None = None
) -> ChainFacts:
    """Models, payers and balances, each asked for once, in one request. With `trial`, a post that is tried without
    sending it, the allowed windows too: the relayer tries every post before it sends it, and finds what this leaves
    out."""
    models = sorted({one.body.model_id for one in submissions})
    slas = sorted({one.body.sla_secs for one in submissions}) if trial is not None else []
    owners = sorted({one.body.owner for one in submissions})
    views: list[View | RpcCall] = [registry.model_enabled_view(model_id) for model_id in models]
    views += [registry.sla_allowed_view(sla) for sla in slas]
    views += [RpcCall("eth_getCode", (hex_of(owner), "latest")) for owner in owners]
    views += [trial] if trial is not None else []
    views += [token.balance_view(owner) for owner in owners]
    answers = iter(await read_many(registry.rpc, views, "payer_code_read"))
    enabled = {model for model in models if is_true(next(answers))}
    allowed = {sla for sla in slas if is_true(next(answers))}
    plain = {owner for owner in owners if next(answers) == b""}
    tried = next(answers) if trial is not None else None
    told = {owner: read_balance(next(answers)) for owner in owners}
    return ChainFacts(
        models=enabled,
        slas=allowed if trial is not None else None,
        payers=plain,
        balances={owner: balance for owner, balance in told.items() if balance is not None},
        refusal=tried if isinstance(tried, Reverted) else None,
    )


def terms_faults(body: OrderBody, now: float) -> Iterator[Fault]:
    """Every term of an order that is out of range."""
    if quotes.derive_job_id(body.owner, body.c) != body.job_id:
        yield WRONG_JOB_ID
    if not now < body.expires_at:
        yield EXPIRED
    if body.expires_at > now + ORDER_LIFE:
        yield EXPIRES_TOO_LATE
    if body.sla_secs > LONGEST_SLA:
        yield SLA_TOO_LONG
    try:
        quotes.cap(body.rate_in, body.rate_out, body.units_in, body.units_out)
    except Refused as refused:
        yield _fault(refused.message, refused.param, refused.code)


def _signed(domains: Domains, orders: Sequence[Submission]) -> Verdicts:
    signer = domains.jobs.signer
    return [None if signer(one.body, one.body.signature) == one.body.owner else WRONG_SIGNER for one in orders]


def _paid_by_owner(domains: Domains, registry: bytes, paid: Sequence[Paid]) -> Verdicts:
    verdicts: list[Fault | None] = []
    for one in paid:
        body = one.body
        payment = packed_job_payment(body.owner, registry, one.amount, body.expires_at, body.job_id)
        payer = domains.token.packed_signer(payment, one.payment)
        verdicts.append(None if payer == body.owner else WRONG_PAYER)
    return verdicts


def _wrong_container(container: bytes, c: bytes) -> Fault | None:
    try:
        check_container(container, c)
    except Refused as refused:
        # A length that no sealing yields cannot reproduce any commitment: here that is the same fault.
        code = "commitment_mismatch" if refused.code == "bad_container" else refused.code
        return _fault(refused.message, "container", code)
    return None
