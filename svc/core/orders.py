"""Build an order, its sealed container, its signing requests and the bodies of its HTTP requests."""

from typing import Any

import attrs

from common.box import PublicKey
from common.envelope import Envelope
from common.messages.jobs import Cancel, Order
from common.messages.payments import job_payment
from common.pricing.model_input import Modality
from common.pricing.units import Units
from common.quotes import derive_job_id
from common.scalars import base64_of, hex_of
from svc.core.bids import Rates
from svc.core.market import VerifiedMarket
from svc.core.sealing import SealedContainer, seal_envelope
from svc.core.typed_data import SigningRequest, build_signing_request


@attrs.frozen(slots=True)
class OrderTerms:
    """Terms of an order. `designated` is 0 for an open order."""

    model: str
    model_id: int
    modality: Modality
    sla_secs: int
    units: Units
    rates: Rates
    designated: int
    expires_at: int


@attrs.frozen(slots=True)
class SealedOrder:
    """Unsigned order and its sealed container. The order contains the commitment of the container."""

    market: VerifiedMarket = attrs.field(repr=False)
    terms: OrderTerms
    owner: bytes
    order: Order = attrs.field(repr=False)
    job_id: bytes
    sealed_container: SealedContainer = attrs.field(repr=False)

    def signing_request(self) -> SigningRequest:
        return build_signing_request("order", self.market.domains.jobs, self.order)


@attrs.frozen(slots=True)
class PreparedOrder:
    """Signed order with its sealed container, for `quote` and `submit`. `id` is the id of its job.

    `unlisted_parameters`: parameters that the model's schema does not list.
    """

    sealed_order: SealedOrder = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    unlisted_parameters: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return hex_of(self.sealed_order.job_id)

    @property
    def terms(self) -> OrderTerms:
        return self.sealed_order.terms

    def quote_body(self) -> dict[str, Any]:
        """Return the body of a quote request."""
        sealed = self.sealed_order
        order = sealed.order
        return {
            "c": hex_of(order.c),
            "model_id": order.model_id,
            "sla_secs": order.sla_secs,
            "rate_in": str(order.rate_in),
            "rate_out": str(order.rate_out),
            "units_in": order.units_in,
            "units_out": order.units_out,
            "designated": order.designated,
            "expires_at": str(order.expires_at),
            "owner": hex_of(sealed.owner),
            "job_id": hex_of(sealed.job_id),
            "signature": hex_of(self.signature),
        }

    def payment(self, amount: int) -> SigningRequest:
        """Return the payment authorisation for this job, for its owner to sign."""
        sealed = self.sealed_order
        market = sealed.market
        authorization = job_payment(sealed.owner, market.job_registry, amount, sealed.order.expires_at, sealed.job_id)
        return build_signing_request("payment", market.domains.token, authorization)

    def submission(self, amount: int, auth_sig: bytes, container_cid: str | None = None) -> dict[str, Any]:
        """Return the body that posts the job. An uploaded container is named by its `container_cid`."""
        body = self.quote_body() | {"amount": str(amount), "auth_sig": hex_of(auth_sig)}
        if container_cid is not None:
            return body | {"container_cid": container_cid}
        return body | {"container": base64_of(self.sealed_order.sealed_container.container)}


def seal_order(market: VerifiedMarket, recipient: PublicKey, envelope: Envelope, terms: OrderTerms) -> SealedOrder:
    sealed = seal_envelope(market, recipient, envelope)
    order = Order(
        c=sealed.c,
        model_id=terms.model_id,
        sla_secs=terms.sla_secs,
        rate_in=terms.rates.rate_in,
        rate_out=terms.rates.rate_out,
        units_in=terms.units.units_in,
        units_out=terms.units.units_out,
        designated=terms.designated,
        expires_at=terms.expires_at,
    )
    return SealedOrder(market, terms, envelope.owner, order, derive_job_id(envelope.owner, sealed.c), sealed)


def cancellation_request(market: VerifiedMarket, job: bytes, issued_at: int) -> SigningRequest:
    return build_signing_request("cancellation", market.domains.jobs, Cancel(job, issued_at))
