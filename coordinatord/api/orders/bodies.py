"""Bodies of POST /v1/jobs: a market probe, an order to be quoted, or an order with its payment and container."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from common import quotes
from common.api import limits
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
    body_field,
    read_object,
)
from common.api.worked_order import ORDER_SIGNATURE
from common.eip712 import struct_hash
from common.messages.jobs import Order
from common.quotes import FeeTerms, Quote
from common.refusal import Refused
from coordinatord.chain.contracts import job_registry

MAX_INLINE_BYTES: Final = limits.MAX_INLINE_BYTES  # largest container or result inside a JSON body, decoded
MAX_CID_CHARACTERS: Final = 128


@attrs.frozen(slots=True)
class MarketProbe:
    """Unsigned request that lists the live asks of a model and a window, for a number of units."""

    model_id: int = body_field(UINT32)
    sla_secs: int = body_field(UINT32)
    units_in: int = body_field(UINT32)
    units_out: int = body_field(UINT32)
    designated: int = body_field(
        UINT32, "id of the only provider to query; 0 for all providers", optional=True, default=0
    )


@attrs.frozen(slots=True)
class OrderBody(Order):
    """Order signed by its owner. An order with `auth_sig`, `amount` and a container will be posted.

    The class is a subclass of `Order`, so that no second object is needed for the signed terms of a batch line."""

    c: bytes = body_field(BYTES32)
    model_id: int = body_field(UINT32)
    sla_secs: int = body_field(UINT32)
    rate_in: int = body_field(UINT128)
    rate_out: int = body_field(UINT128)
    units_in: int = body_field(UINT32)
    units_out: int = body_field(UINT32)
    designated: int = body_field(UINT32)
    expires_at: int = body_field(
        UINT64, "last second in which the job may be claimed, in Unix seconds: at most 86400 s ahead"
    )
    owner: bytes = body_field(ADDRESS)
    job_id: bytes = body_field(BYTES32)
    signature: bytes = body_field(SIGNATURE, "the owner's Order signature", example=ORDER_SIGNATURE)
    auth_sig: bytes | None = body_field(SIGNATURE, optional=True)
    amount: int | None = body_field(UINT256, "the quoted amount, in base units of the payment token", optional=True)
    container: bytes | None = body_field(Base64(MAX_INLINE_BYTES), optional=True)
    container_cid: str | None = body_field(
        Text(MAX_CID_CHARACTERS), "`svc.cid` of an `input` upload by the owner, in place of `container`", optional=True
    )

    def quote(self, terms: FeeTerms) -> Quote:
        return quotes.quote(self.rate_in, self.rate_out, self.units_in, self.units_out, terms)


@attrs.frozen(slots=True)
class PaidOrder:
    """Order with its payment, ready to be posted."""

    order: OrderBody
    payment: bytes
    amount: int

    def calldata(self, task_cid: str) -> bytes:
        """Return the calldata that posts the order with this content id."""
        body = self.order
        return job_registry.post_calldata(
            body,
            body.owner,
            amount=self.amount,
            task_cid=task_cid,
            order_signature=body.signature,
            payment=self.payment,
        )

    def dedupe_digest(self, task_cid: str) -> bytes:
        """Return the digest of the submission's terms, amount and container. It does not cover the signature bytes, so
        equal submissions with different signatures have the same digest."""
        amount = self.amount.to_bytes(32, "big")
        return hashlib.sha256(
            b"post" + self.order.job_id + struct_hash(self.order) + amount + task_cid.encode()
        ).digest()


def to_paid_order(body: OrderBody) -> PaidOrder | None:
    """Return the order with its payment, or None for an order that only requests a quote."""
    if body.auth_sig is None or body.amount is None:
        return None
    return PaidOrder(body, body.auth_sig, body.amount)


def read_submission(body: Mapping[str, object]) -> MarketProbe | OrderBody:
    """Read a body. A body with neither rate is a probe. Any other body is an order and must be complete."""
    if body.get("rate_in") is None and body.get("rate_out") is None:
        return read_object(MarketProbe, body)
    order = read_object(OrderBody, body)
    for fault in optional_field_faults(order):
        raise fault
    return order


def optional_field_faults(body: OrderBody) -> Iterator[Refused]:
    """Yield the faults of the optional fields: a payment without amount or container, a container without payment, or
    two containers."""
    has_container = body.container is not None or body.container_cid is not None
    if body.auth_sig is None:
        if has_container:
            yield Refused("a container requires auth_sig", "container", "container_without_payment")
        return
    if not has_container:
        yield Refused("auth_sig requires container or container_cid", "container", "container_required")
    if body.container is not None and body.container_cid is not None:
        yield Refused("send either container or container_cid, not both", "container_cid", "container_ambiguous")
    if body.amount is None:
        yield Refused("amount is required with auth_sig", "amount")
