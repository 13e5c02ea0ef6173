"""Reasons that keep providers from an open job."""

from collections.abc import Iterator, Sequence

import attrs

from common.api import why
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.why_sql import OpenJob, ProviderFacts
from coordinatord.chain.contracts.payment_token import Funds


@attrs.frozen(slots=True)
class ProviderAssessment:
    """Reasons that keep a provider from a job, the most important first. Without any reason, the provider's next poll
    takes the job."""

    provider: ProviderFacts
    reasons: tuple[why.WhyReason, ...]

    @property
    def would_take(self) -> bool:
        return not self.reasons

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(reason.code for reason in self.reasons)


def reasons_of_job(job: OpenJob, funds: Funds) -> list[why.WhyReason]:
    """Return the reasons that keep every provider from a job."""
    return [why.WhyReason(code, text, why.JOB_REASON_REMEDIES[code]) for code, text in _job_reasons(job, funds)]


def _job_reasons(job: OpenJob, funds: Funds) -> Iterator[tuple[str, str]]:
    if not job.model_enabled:
        yield "model_disabled", "the market accepts no jobs of the job's model"
    if job.key_lost:
        yield "escrow_key_lost", "the job is sealed to a key that the escrow has lost"
    if job.row.job_id in funds.used_job_ids:
        yield "authorization_used", "the owner's authorisation of the payment is used up or cancelled"
    balance = funds.balances.get(job.row.owner)
    if balance is not None and balance < job.amount:
        yield "unfunded", f"the job costs {job.amount}, and its owner's balance is {balance}"
    if job.leased_to == 0:
        yield (
            "held_back",
            f"the payment could not be collected a moment ago; the job is offered again in {job.seconds_left} s",
        )


def assess_provider(job: OpenJob, provider: ProviderFacts, job_reasons: Sequence[why.WhyReason]) -> ProviderAssessment:
    """Return the reasons that keep a provider from a job. `job_reasons` are the reasons that keep every provider from
    the job."""
    provider_only = [
        why.WhyReason(code, text, why.PROVIDER_REASON_REMEDIES[code]) for code, text in _provider_reasons(job, provider)
    ]
    return ProviderAssessment(provider, (*job_reasons, *provider_only))


def _provider_reasons(open_job: OpenJob, provider: ProviderFacts) -> Iterator[tuple[str, str]]:
    job = open_job.row
    holds_lease = open_job.leased_to == provider.provider_id
    if not provider.listed:
        yield "not_listed", "the market's admin does not list the provider"
    if not provider.allowed:
        yield "model_not_allowed", "the market's admin does not allow the provider to run the model"
    if job.designated not in (0, provider.provider_id):
        yield "designated", f"the order is for provider {job.designated} alone"
    if not provider.meets_ask:
        yield _mismatch_reason(job, provider)
    if not provider.live:
        never = provider.seconds_since_poll is None
        text = (
            "the provider never polled for the model"
            if never
            else f"the provider last polled {provider.seconds_since_poll} s ago"
        )
        yield "not_live", text
    if holds_lease:
        return
    if provider.active_jobs >= provider.capacity:
        yield "full", f"the provider holds {provider.active_jobs} claimed jobs, and its capacity is {provider.capacity}"
    elif provider.free_capacity <= 0:
        yield "no_free_slots", "the provider has no room for another job now"
    elif open_job.older_bids + provider.older_orders >= provider.free_capacity:
        yield (
            "behind_others",
            f"{open_job.older_bids + provider.older_orders} older jobs come first, and the provider has no room"
            " for more",
        )
    if open_job.leased_to:
        yield "leased", f"the job is offered to provider {open_job.leased_to} for {open_job.seconds_left} s more"


def _mismatch_reason(job: JobRow, provider: ProviderFacts) -> tuple[str, str]:
    if not provider.asks:
        return "no_ask", "the provider has no ask for the model"
    for ask in provider.asks:
        if ask.sla == job.sla_secs:
            asked, paid = f"{ask.rate_in} in and {ask.rate_out} out", f"{job.rate_in} in and {job.rate_out} out"
            return "price", f"the provider asks {asked}; the order pays {paid}"
    windows = ", ".join(str(ask.sla) for ask in provider.asks)
    return (
        "window",
        f"the provider has asks only for windows of {windows} seconds; the order's window is {job.sla_secs}",
    )


def sort_assessments(assessments: Sequence[ProviderAssessment]) -> list[ProviderAssessment]:
    """Sort providers: first providers that take the job, then live providers, then listed providers, then providers
    with fewer reasons."""

    def rank(assessment: ProviderAssessment) -> tuple[bool, bool, bool, int, int]:
        provider = assessment.provider
        reasons = len(assessment.reasons)
        return not assessment.would_take, not provider.live, not provider.listed, reasons, provider.provider_id

    return sorted(assessments, key=rank)
