"""Check of a quote. A payment is signed only for an amount that was computed here."""

from typing import Final

from common import quotes
from common.quotes import FeeTerms
from common.scalars import hex_of
from svc.core.money import Ceiling
from svc.core.orders import PreparedOrder
from svc.errors import QuoteRefused
from svc.records import Authorization, Quote, Quoted, TokenDomain

MOST_ATTEMPTS: Final = 3  # submissions of one order, each with a payment for a newer quote


def fee_terms(quote: Quote) -> FeeTerms:
    """The charges that the quote was made under; every order of a batch is priced with those of one quote."""
    return FeeTerms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee)


def amount_of(prepared: PreparedOrder, terms: FeeTerms) -> int:
    order = prepared.sealed_order.order
    return quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms).amount


def computed_quote(prepared: PreparedOrder, terms: FeeTerms) -> Quoted:
    """The quote that an order comes to under charges that are known, so that nobody need be asked for it. Where they
    have changed, the answer to the post holds the new one."""
    sealed = prepared.sealed_order
    order, domain = sealed.order, sealed.market.domains.token.domain
    quote = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    contract = domain.verifying_contract
    token = TokenDomain(domain.name, domain.version, domain.chain_id, "" if contract is None else hex_of(contract))
    authorization = Authorization(
        token, hex_of(sealed.market.job_registry), quote.amount, 0, order.expires_at + 1, prepared.id
    )
    return Quoted(Quote(quote.cap, terms.fee_bps, quote.fee, quote.gas_fee, quote.amount, authorization), ())


def checked_amount(prepared: PreparedOrder, quote: Quote, ceiling: Ceiling) -> int:
    """The amount to authorise. Raises QuoteRefused when the quote says anything else, OverCeiling above the ceiling."""
    sealed, authorization = prepared.sealed_order, quote.authorization
    order, domain = sealed.order, sealed.market.domains.token.domain
    try:
        expected = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, fee_terms(quote))
    except ValueError as error:
        raise QuoteRefused(f"the quote's charges are out of range: {error}", code="quote_mismatch") from None
    contract = domain.verifying_contract
    said = (
        (quote.cap, quote.fee, quote.gas_fee, quote.amount),
        (authorization.value, authorization.valid_after, authorization.valid_before),
        (authorization.to.lower(), authorization.nonce.lower()),
        (authorization.domain.name, authorization.domain.version, authorization.domain.chainId),
        authorization.domain.verifyingContract.lower(),
    )
    ours = (
        (expected.cap, expected.fee, expected.gas_fee, expected.amount),
        (expected.amount, 0, order.expires_at + 1),
        (hex_of(sealed.market.job_registry), prepared.id),
        (domain.name, domain.version, domain.chain_id),
        hex_of(contract) if contract is not None else None,
    )
    if said != ours:
        raise QuoteRefused("the quote is not what this order comes to", code="quote_mismatch")
    ceiling.check(expected.amount, "the order")
    return expected.amount
