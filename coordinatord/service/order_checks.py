"""What the body of a submission decides by itself: terms, signatures, container.

POST /v1/jobs and the lines of batches ask the same questions, and name two of the answers differently.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import attrs

from common import quotes
from common.container import check_container
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.payments import packed_job_payment
from common.quotes import Quote, Terms
from common.refusal import Refused
from common.secp256k1 import recover
from common.signatures import signers
from coordinatord.chain import job_registry
from coordinatord.service.orders import OrderBody
from coordinatord.service.windows import ORDER_LIFE

LONGEST_SLA: Final = 86_400


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
    return job_registry.post(
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
