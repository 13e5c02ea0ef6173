"""What a job came to, from its order and the charges it was posted under."""

import attrs

from common import quotes
from common.quotes import Terms
from svc.core.amounts import in_token
from svc.records import Deployment, Job, Quote


@attrs.frozen
class Cost:
    """In base units: authorised at the order; once settled, shared out between three."""

    authorised: int
    provider: int
    fees: int
    returned: int

    @property
    def paid(self) -> int:
        return self.provider + self.fees


def cost_of(job: Job, quote: Quote) -> Cost:
    """Of a settled job."""
    order, terms = job.svc, Terms(quote.fee_bps, quote.gas_fee)
    shares = quotes.settlement(
        order.rate_in, order.rate_out, order.units_in, order.units_out, terms, completion_tok=order.completion_tok
    )
    return Cost(quote.amount, shares.provider, shares.treasury, shares.owner)


def in_words(cost: Cost, chain: Deployment) -> str:
    shares = (cost.paid, cost.provider, cost.fees, cost.returned)
    paid, provider, fees, returned = (in_token(share, chain.decimals) for share in shares)
    return f"paid {paid} {chain.token_domain.name} (provider {provider}, fees {fees}); {returned} came back"
