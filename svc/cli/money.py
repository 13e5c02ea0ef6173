"""Money of a job in words: what it came to, how it was shared out, and where it is now."""

import attrs

from common import quotes
from common.quotes import Terms
from svc.core.money import in_token
from svc.errors import NO_RESULT_MONEY
from svc.records import ENDED_BECAUSE, Deployment, Job, Quote
from svc.results import cost_of as provider_cost


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


def in_words(cost: Cost, chain: Deployment, *, provisional: bool = False) -> str:
    shares = (cost.paid, cost.provider, cost.fees, cost.returned)
    paid, provider, fees, returned = (in_token(share, chain.decimals) for share in shares)
    shared = f"paid {paid} {chain.token_domain.name} (provider {provider}, fees {fees})"
    if provisional:
        return f"to be {shared} once it is settled; {returned} is to come back"
    return f"{shared}; {returned} came back"


def became(job: Job, chain: Deployment) -> str:
    """How a job ended, and where its money is."""
    if job.status == "completed":
        provider = told(provider_cost(job), chain)
        return f"completed and paid: {provider} to its provider and the fees on top, the rest came back"
    why = ENDED_BECAUSE.get(job.svc.ended_because, job.status)
    said = f"{why.replace('_', ' ')}: {NO_RESULT_MONEY.get(why, 'no provider was paid')}"
    back = came_back(job, chain)
    return said if back is None else f"{said}: {back}"


def came_back(job: Job, chain: Deployment) -> str | None:
    """The payment that an end without a result returned; None where none was collected, or it is not told."""
    collected = job.status == "failed" and job.svc.amount is not None
    return told(job.svc.amount or 0, chain) if collected else None


def money_of(job: Job, chain: Deployment) -> str:
    """Where it is now."""
    if job.ended:
        return became(job, chain).partition(": ")[2]
    if job.status == "queued":
        return "authorised, and still in the wallet: it is collected when a provider claims the job"
    return "held by the job registry: the provider is paid by its settle, or all of it comes back"


def told(amount: int, chain: Deployment) -> str:
    return f"{in_token(amount, chain.decimals)} {chain.token_domain.name}"
