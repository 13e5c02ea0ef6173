"""Money of a job in words: what it came to, how it was shared out, and where it is now."""

from typing import Any

import attrs

from common import quotes
from common.quotes import CostParts, FeeTerms
from svc.core.money import in_token
from svc.errors import NO_RESULT_MONEY
from svc.records import ENDED_BECAUSE, Deployment, Job, Quote
from svc.results import cost_parts_of, provider_part


@attrs.frozen
class Paid:
    """Money of a settled job, in base units: what was authorised for it, and what of that it cost."""

    authorised: int
    parts: CostParts

    @property
    def returned(self) -> int:
        return self.authorised - self.parts.total


def paid_for(job: Job, quote: Quote) -> Paid:
    """Return what a settled job cost that was ordered at this quote."""
    parts = quotes.cost_parts(provider_part(job), FeeTerms(quote.fee_bps, quote.gas_fee))
    return Paid(quote.amount, parts)


def in_json(parts: CostParts | None) -> dict[str, Any]:
    """Return `cost` and `cost_parts` as every command has them under `--json`; null where they are unknown."""
    return {"cost": parts and parts.total, "cost_parts": parts and attrs.asdict(parts)}


def in_words(paid: Paid, chain: Deployment, *, provisional: bool = False) -> str:
    parts = paid.parts
    shares = (parts.total, parts.provider, parts.fee + parts.gas_fee, paid.returned)
    total, provider, fees, returned = (in_token(share, chain.decimals) for share in shares)
    shared = f"paid {total} {chain.token_domain.name} (provider {provider}, fees {fees})"
    if provisional:
        return f"to be {shared} once it is settled; {returned} is to come back"
    return f"{shared}; {returned} came back"


def became(job: Job, chain: Deployment) -> str:
    """How a job ended, and where its money is."""
    if job.status == "completed":
        parts = cost_parts_of(job)
        if parts is None:
            return f"completed and paid: {told(provider_part(job), chain)} to its provider, and the fees"
        provider, fees = (in_token(share, chain.decimals) for share in (parts.provider, parts.fee + parts.gas_fee))
        return f"completed: paid {told(parts.total, chain)} (provider {provider}, fees {fees}), the rest came back"
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
