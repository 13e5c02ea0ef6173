"""Describe the cost of a job, its shares and its refund."""

from typing import Any

import attrs

from common import quotes
from common.quotes import CostParts, FeeTerms
from svc.core.money import format_token_amount
from svc.errors import REFUND_REMARKS
from svc.records import CODE_BY_ENDED_BECAUSE, Deployment, Job, Quote
from svc.results import cost_parts_of, provider_cost


@attrs.frozen
class Payment:
    """Amounts of a settled job in base units: the authorised amount, and the parts of the cost."""

    authorised: int
    parts: CostParts

    @property
    def refunded(self) -> int:
        return self.authorised - self.parts.total


def compute_payment(job: Job, quote: Quote) -> Payment:
    """Return the payment of a settled job that was ordered at this quote."""
    parts = quotes.cost_parts(provider_cost(job), FeeTerms(quote.fee_bps, quote.gas_fee))
    return Payment(quote.amount, parts)


def cost_json(parts: CostParts | None) -> dict[str, Any]:
    """Return the fields `cost` and `cost_parts` for `--json`. Both are null if the cost is unknown."""
    return {"cost": parts and parts.total, "cost_parts": parts and attrs.asdict(parts)}


def describe_payment(payment: Payment, deployment: Deployment, *, provisional: bool = False) -> str:
    """Describe the cost, its shares and the refund."""
    parts = payment.parts
    amounts = (parts.total, parts.provider, parts.fee + parts.gas_fee, payment.refunded)
    total, provider, fees, refunded = (format_token_amount(share, deployment.decimals) for share in amounts)
    shares = f"(provider {provider}, fees {fees})"
    if provisional:
        return f"cost {total} {deployment.token_domain.name} on settlement {shares}; {refunded} refunded"
    return f"paid {total} {deployment.token_domain.name} {shares}; {refunded} refunded"


def describe_end(job: Job, deployment: Deployment) -> str:
    """Describe how a job ended, and what was paid or refunded."""
    if job.status == "completed":
        parts = cost_parts_of(job)
        if parts is None:
            return f"completed and paid: {format_amount(provider_cost(job), deployment)} to the provider, plus fees"
        provider, fees = (
            format_token_amount(share, deployment.decimals) for share in (parts.provider, parts.fee + parts.gas_fee)
        )
        paid = format_amount(parts.total, deployment)
        return f"completed: paid {paid} (provider {provider}, fees {fees}), the rest refunded"
    reason = CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because, job.status)
    text = f"{reason.replace('_', ' ')}: {REFUND_REMARKS.get(reason, 'no provider was paid')}"
    refund = format_refund(job, deployment)
    return text if refund is None else f"{text} ({refund})"


def format_refund(job: Job, deployment: Deployment) -> str | None:
    """Return the refund of a failed job, or None if nothing was collected or the amount is unknown."""
    collected = job.status == "failed" and job.svc.amount is not None
    return format_amount(job.svc.amount or 0, deployment) if collected else None


def describe_payment_state(job: Job, deployment: Deployment) -> str:
    """Describe whether a job's payment is in the wallet, held by the job registry, paid or refunded."""
    if job.ended:
        return describe_end(job, deployment).partition(": ")[2]
    if job.status == "queued":
        return "authorised but still in the wallet; collected when a provider claims the job"
    return "held by the job registry until the job is settled or refunded"


def format_amount(amount: int, deployment: Deployment) -> str:
    return f"{format_token_amount(amount, deployment.decimals)} {deployment.token_domain.name}"
