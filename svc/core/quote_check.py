"""Check quotes. The client computes each amount itself, and signs no other amount."""

from typing import Final

from common import quotes
from common.quotes import FeeTerms
from common.scalars import hex_of
from svc.core.money import Ceiling
from svc.core.orders import PreparedOrder
from svc.errors import QuoteRefused
from svc.records import Authorization, Quote, Quoted, TokenDomain

MAX_SUBMIT_ATTEMPTS: Final = 3  # for one order, each with a newer quote


def fee_terms(quote: Quote) -> FeeTerms:
    """Return the charges of a quote. All orders have the same charges, until the operator changes them."""
    return FeeTerms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee)


def order_amount(prepared: PreparedOrder, terms: FeeTerms) -> int:
    order = prepared.sealed_order.order
    return quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms).amount


def compute_quote(prepared: PreparedOrder, terms: FeeTerms) -> Quoted:
    """Compute the quote of an order from known charges, without a request.

    If the charges have changed since, the coordinator rejects the post and returns a new quote.
    """
    sealed = prepared.sealed_order
    order, domain = sealed.order, sealed.market.domains.token.domain
    quote = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    contract = domain.verifying_contract
    token = TokenDomain(domain.name, domain.version, domain.chain_id, "" if contract is None else hex_of(contract))
    authorization = Authorization(
        token, hex_of(sealed.market.job_registry), quote.amount, 0, order.expires_at + 1, prepared.id
    )
    return Quoted(Quote(quote.cap, terms.fee_bps, quote.fee, quote.gas_fee, quote.amount, authorization), ())


def check_amount(prepared: PreparedOrder, quote: Quote, ceiling: Ceiling) -> int:
    """Return the amount to authorise.

    Raises QuoteRefused if the quote does not match the order, or OverCeiling if the amount is above the ceiling.
    """
    sealed, authorization = prepared.sealed_order, quote.authorization
    order, domain = sealed.order, sealed.market.domains.token.domain
    try:
        expected = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, fee_terms(quote))
    except ValueError as error:
        raise QuoteRefused(f"the quote's charges are out of range: {error}", code="quote_mismatch") from None
    contract = domain.verifying_contract
    quoted_values = (
        (quote.cap, quote.fee, quote.gas_fee, quote.amount),
        (authorization.value, authorization.valid_after, authorization.valid_before),
        (authorization.to.lower(), authorization.nonce.lower()),
        (authorization.domain.name, authorization.domain.version, authorization.domain.chainId),
        authorization.domain.verifyingContract.lower(),
    )
    expected_values = (
        (expected.cap, expected.fee, expected.gas_fee, expected.amount),
        (expected.amount, 0, order.expires_at + 1),
        (hex_of(sealed.market.job_registry), prepared.id),
        (domain.name, domain.version, domain.chain_id),
        hex_of(contract) if contract is not None else None,
    )
    if quoted_values != expected_values:
        raise QuoteRefused("the quote does not match the order, so no payment was signed", code="quote_mismatch")
    ceiling.check(expected.amount, "the order")
    return expected.amount
