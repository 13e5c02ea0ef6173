"""The body of a submission, as POST /v1/jobs and every line of a batch file carry it.

Without rates it asks the market; with rates it is an order; with `auth_sig` the order is to be posted.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from common.messages.jobs import Order
from common.refusal import Refused
from coordinatord.fields import (
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

INLINE_BYTES: Final = 15_679_488  # largest container or result inside a JSON body, decoded
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
