"""The body of a submission, as POST /v1/jobs and every line of a batch file carry it.

Without rates it asks the market; with rates it is an order; with `auth_sig` the order is to be posted.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from common import quotes
from common.container import check_container
from common.domains import Domains, struct_hash
from common.messages.jobs import Order
from common.messages.payments import packed_job_payment
from common.quotes import Quote, Terms
from common.refusal import Refused
from common.secp256k1 import recover, signers
from common.wire import limits
from common.wire.fields import (
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
from coordinatord.base.clock import ORDER_LIFE
from coordinatord.chain import registries

INLINE_BYTES: Final = limits.INLINE_BYTES  # largest container or result inside a JSON body, decoded
CID_CHARACTERS: Final = 128


@attrs.frozen(slots=True)
class MarketProbe:
    """What would the market take for this? Unsigned."""

    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    designated: int = wire(UINT32, "only this provider", optional=True, default=0)


@attrs.frozen(slots=True)
class OrderBody(Order):
    """An order that its owner signed; with `auth_sig`, `amount` and a container it is to be posted. (It is the order
    itself, as the wire names its fields: a second object for every line of a batch would say the same.)"""

    c: bytes = wire(BYTES32, "commitment to the sealed container")
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    rate_in: int = wire(UINT128, "price per 10^6 units, in base units of the payment token")
    rate_out: int = wire(UINT128, "price per 10^6 units, in base units of the payment token")
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    designated: int = wire(UINT32, "0, or the provider the job is reserved for")
    expires_at: int = wire(UINT64, "Unix seconds, at most a day ahead")
    owner: bytes = wire(ADDRESS, "owner and payer")
    job_id: bytes = wire(BYTES32, "keccak256(owner ‖ c)")
    signature: bytes = wire(SIGNATURE, "the owner's Order signature")
    auth_sig: bytes | None = wire(SIGNATURE, "the owner's ReceiveWithAuthorization signature", optional=True)
    amount: int | None = wire(UINT256, "the quoted amount", optional=True)
    container: bytes | None = wire(Base64(INLINE_BYTES), "the sealed container", optional=True)
    container_cid: str | None = wire(Text(CID_CHARACTERS), "an input upload by the owner", optional=True)


def read_submission(body: Mapping[str, object]) -> MarketProbe | OrderBody:
    """A probe names neither rate; anything else is an order and must be whole."""
    if body.get("rate_in") is None and body.get("rate_out") is None:
        return read_object(MarketProbe, body)
    order = read_object(OrderBody, body)
    _check_shape(order)
    return order


def _check_shape(body: OrderBody) -> None:
    """Payment and container come together, and the container in one way."""
    has_container = body.container is not None or body.container_cid is not None
    if body.auth_sig is None:
        if has_container:
            raise Refused("a container is sent together with auth_sig", "container", "container_without_payment")
        return
    if not has_container:
        raise Refused("auth_sig needs container or container_cid", "container", "container_required")
    if body.container is not None and body.container_cid is not None:
        raise Refused("container and container_cid exclude each other", "container_cid", "container_ambiguous")
    if body.amount is None:
        raise Refused("amount is required with auth_sig", "amount")


# What the body of a submission decides by itself: terms, signatures, container.
#
# POST /v1/jobs and the lines of batches ask the same questions, and name two of the answers differently.

LONGEST_SLA: Final = limits.LONGEST_SLA


@attrs.frozen(slots=True)
class Paid:
    """A submission whose fields are all there."""

    body: OrderBody
    payment: bytes
    amount: int


@attrs.frozen(slots=True)
class WrongTerms:
    """`line_code` names it in a batch's error file, where every error has a code."""

    message: str
    param: str
    line_code: str


def wrong_terms(body: OrderBody, now: float) -> WrongTerms | None:
    """Raises Refused `cap_overflow`, which goes by one name everywhere."""
    if quotes.job_id(body.owner, body.c) != body.job_id:
        return WrongTerms("job_id is not keccak256(owner ‖ c)", "job_id", "invalid_line")
    if not now < body.expires_at:
        return WrongTerms("expires_at must be in the next 86400 seconds", "expires_at", "order_expired")
    if body.expires_at > now + ORDER_LIFE:
        return WrongTerms("expires_at must be in the next 86400 seconds", "expires_at", "expiry_too_far")
    if body.sla_secs > LONGEST_SLA:
        return WrongTerms(f"sla_secs must be at most {LONGEST_SLA}", "sla_secs", "sla_too_long")
    quotes.cap(body.rate_in, body.rate_out, body.units_in, body.units_out)
    return None


def quote_of(body: OrderBody, terms: Terms) -> Quote:
    return quotes.quote(body.rate_in, body.rate_out, body.units_in, body.units_out, terms)


def amount_of(body: OrderBody, terms: Terms) -> int:
    return quotes.amount(body.rate_in, body.rate_out, body.units_in, body.units_out, terms)


def order_signer(domains: Domains, body: OrderBody) -> bytes | None:
    return recover(domains.jobs.digest(body), body.signature)


def signers_of(
    domains: Domains, registry: bytes, submissions: Sequence[Paid]
) -> list[tuple[bytes | None, bytes | None]]:
    """Of each, who signed the order and who signed the payment."""
    questions: list[bytes] = []
    for paid in submissions:
        body = paid.body
        payment = packed_job_payment(body.owner, registry, paid.amount, body.expires_at, body.job_id)
        questions.append(domains.jobs.signed(body, body.signature))
        questions.append(domains.token.signed_struct(payment, paid.payment))
    answers = signers(questions)
    return list(zip(answers[::2], answers[1::2], strict=True))


def check_order_signer(body: OrderBody, signer: bytes | None) -> None:
    if signer != body.owner:
        raise Refused("signature does not recover to owner", "signature", "invalid_order_signature")


def check_payer(body: OrderBody, signer: bytes | None) -> None:
    if signer != body.owner:
        raise Refused("auth_sig does not recover to owner", "auth_sig", "invalid_payment_signature")


def check_inline(container: bytes, c: bytes) -> None:
    try:
        check_container(container, c)
    except Refused as wrong:
        # A length that no sealing yields cannot reproduce any commitment: here that is the same fault.
        code = "commitment_mismatch" if wrong.code == "bad_container" else wrong.code
        raise Refused(wrong.message, "container", code) from None


def post_calldata(paid: Paid, task_cid: str) -> bytes:
    body = paid.body
    return registries.post(
        body,
        body.owner,
        amount=paid.amount,
        task_cid=task_cid,
        order_signature=body.signature,
        payment=paid.payment,
    )


def same_post(paid: Paid, task_cid: str) -> bytes:
    """What makes two submissions one: terms, amount and container; not their signature bytes."""
    order = struct_hash(paid.body)
    return hashlib.sha256(
        b"post" + paid.body.job_id + order + paid.amount.to_bytes(32, "big") + task_cid.encode()
    ).digest()
