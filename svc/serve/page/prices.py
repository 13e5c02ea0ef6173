"""Price of an answer before it is bought, and who will be able to read the request."""

from typing import Any

from common import quotes
from svc.core.bids import OPEN_PROVIDER
from svc.core.order_request import price_request
from svc.core.orders import PreparedOrder
from svc.serve.attempts import PurchaseContext
from svc.serve.requests import AnswerRequest

JsonObject = dict[str, Any]


async def highest_price(context: PurchaseContext, requested: AnswerRequest) -> JsonObject:
    """Return the highest cost at the best offer, and who can read the request. Raises Problem, Refused and SvcError."""
    priced = price_request(requested.to_order_request(), requested.model)
    offer = await context.prices.best_offer(requested.model, requested.rule, ())

    async def prepare() -> PreparedOrder:
        return await context.client.orders.prepare_for(
            requested.to_order_request(), requested.model, offer.bid, offer.recipient
        )

    try:
        terms = await context.prices.get_fee_terms(prepare)
    finally:
        context.prices.load.on_ended(offer.provider, claimed=False)  # the offer was only needed for its price
    rates, units = offer.bid.rates, priced.units
    amount = quotes.amount(rates.rate_in, rates.rate_out, units.units_in, units.units_out, terms)
    return {
        "amount": str(amount),
        "provider": offer.provider,
        "window": requested.rule.window,
        "hedged": context.settings.buying.hedge_seconds > 0,
        # An open order is sealed to the escrow, whose key the operator holds.
        "readers": "operator" if offer.provider == OPEN_PROVIDER else "provider",
    }
