"""Verdict on why a job is unclaimed, or on how it was claimed or ended: one code and one sentence."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from common.api import why
from common.api.states import EndedBecause, JobState
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.why_reasons import ProviderAssessment
from coordinatord.api.book.why_sql import OpenJob

_END_VERDICTS: Final = {
    EndedBecause.SETTLE: ("settled", "the provider settled the job, and the result is paid for"),
    EndedBecause.CANCEL: ("cancelled", "the owner cancelled the open job, and no payment was collected"),
    EndedBecause.PROVIDER_FAIL: ("failed", "the provider failed the job, and the owner got the payment back"),
    EndedBecause.RECLAIM: ("reclaimed", "the provider missed the window, and the owner got the payment back"),
    EndedBecause.EXPIRY: ("expired", "no provider claimed the job before it expired, and no payment was collected"),
}
_REASON_PHRASES: Final = {
    "not_listed": "is not listed",
    "model_not_allowed": "is not allowed to run the model",
    "no_ask": "has no ask for the model",
    "window": "has asks for other windows only",
    "price": "asks more than the order pays",
    "not_live": "does not poll",
    "full": "holds as many jobs as it may",
    "no_free_slots": "has no room now",
    "behind_others": "has older jobs to take first",
}


def verdict_on_open(
    job: OpenJob, job_reasons: Sequence[why.WhyReason], assessments: Sequence[ProviderAssessment]
) -> tuple[str, str]:
    """Return the code and the sentence for an open job. `job_reasons` are the reasons that keep every provider from the
    job."""
    if job_reasons:
        return job_reasons[0].code, job_reasons[0].said
    if job.leased_to:
        return "leased", f"provider {job.leased_to} is offered the job, and has {job.seconds_left} s more to claim it"
    takers = [str(one.provider.provider_id) for one in assessments if one.would_take]
    if takers:
        word = "provider" if len(takers) == 1 else "providers"
        return "can_be_taken", f"{word} {', '.join(takers)} could take the job, and may do so at any moment"
    designated = job.row.designated
    relevant = [
        one
        for one in assessments
        if one.provider.provider_id == designated or (not designated and one.provider.live and one.provider.listed)
    ]
    if designated:
        if not relevant:
            return "kept_away", f"the order is for provider {designated}, which is not registered"
        texts = "; ".join(reason.said for reason in relevant[0].reasons)
        return relevant[0].reasons[0].code, f"the order is for provider {designated} alone: {texts}"
    if not relevant:
        return "nobody_live", "no listed provider polls for the job's model now"
    first_reasons = Counter(one.reasons[0].code for one in relevant)
    summary = "; ".join(f"{number} {_REASON_PHRASES[code]}" for code, number in first_reasons.most_common())
    return (
        next(iter(first_reasons)) if len(first_reasons) == 1 else "kept_away",
        f"of {len(relevant)} providers that poll for the job's model: {summary}",
    )


def verdict_on_claimed_or_ended(job: JobRow) -> tuple[str, str]:
    """Return the code and the sentence for a job that is claimed or has ended."""
    if job.state == JobState.CLAIMED:
        ends = job.claimed_at + job.sla_secs
        return "claimed", f"provider {job.provider_id} claimed the job, and has until {ends} to settle it"
    return _END_VERDICTS[EndedBecause(job.ended_because)]
