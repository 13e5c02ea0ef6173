"""Changes of an open order, or of its owner's balance, after which providers would take the job."""

from collections.abc import Iterator, Sequence
from typing import Final

from common.api import why
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.why_reasons import ProviderAssessment
from coordinatord.api.book.why_sql import OpenJob, ProviderFacts
from coordinatord.chain.contracts.payment_token import Funds

_MAX_SUGGESTED_WINDOWS: Final = 4
# Reasons that an order with other terms would avoid.
_DUE_TO_TERMS: Final = frozenset({"no_ask", "window", "price", "designated"})
_INDEPENDENT_OF_TERMS: Final = frozenset({"unfunded", "held_back", "leased"})


def helpful_changes(
    job: OpenJob, assessments: Sequence[ProviderAssessment], funds: Funds
) -> Iterator[why.WhyHelp[str]]:
    """Return the changes after which providers would take the job."""
    row, balance = job.row, funds.balances.get(job.row.owner)
    if balance is not None and balance < job.amount:
        takers = sum(one.codes <= {"unfunded", "held_back"} for one in assessments)
        yield why.WhyHelp("funds", {"balance": str(job.amount)}, str(takers))
    if any(one.codes <= _INDEPENDENT_OF_TERMS for one in assessments):
        return
    able = [one for one in assessments if one.codes - _INDEPENDENT_OF_TERMS <= _DUE_TO_TERMS]
    eligible = [one.provider for one in able if "designated" not in one.codes]
    yield from _better_rates(row, eligible)
    yield from _other_windows(row, eligible)
    others = [
        one.provider for one in able if "designated" in one.codes and _meets_terms(row, one.provider, row.sla_secs)
    ]
    if others:
        cheapest = min(others, key=lambda one: (_job_cost(row, one), one.active_jobs / one.capacity, one.provider_id))
        yield why.WhyHelp("designated", {"designated": str(cheapest.provider_id)}, "1")


def _better_rates(job: JobRow, providers: Sequence[ProviderFacts]) -> Iterator[why.WhyHelp[str]]:
    """Yield the lowest asked rates, if every ask for the job's window is above the job's rates."""
    asked = {provider.provider_id: ask for provider in providers for ask in provider.asks if ask.sla == job.sla_secs}
    too_expensive = [
        ask for ask in asked.values() if ask.rate_in > int(job.rate_in) or ask.rate_out > int(job.rate_out)
    ]
    if not too_expensive or len(too_expensive) < len(asked):
        return
    ask = min(
        too_expensive, key=lambda each: (each.rate_in * job.units_in + each.rate_out * job.units_out, each.rate_in)
    )
    takers = sum(each.rate_in <= ask.rate_in and each.rate_out <= ask.rate_out for each in asked.values())
    yield why.WhyHelp("rates", {"rate_in": str(ask.rate_in), "rate_out": str(ask.rate_out)}, str(takers))


def _other_windows(job: JobRow, providers: Sequence[ProviderFacts]) -> Iterator[why.WhyHelp[str]]:
    """Yield the shortest other windows for which the job's rates meet an ask."""
    windows = {ask.sla for provider in providers for ask in provider.asks} - {job.sla_secs}
    takers = {sla: sum(_meets_terms(job, provider, sla) for provider in providers) for sla in sorted(windows)}
    for sla in [sla for sla, number in takers.items() if number][:_MAX_SUGGESTED_WINDOWS]:
        yield why.WhyHelp("window", {"sla_secs": str(sla)}, str(takers[sla]))


def _meets_terms(job: JobRow, provider: ProviderFacts, sla: int) -> bool:
    return any(
        ask.sla == sla and ask.rate_in <= int(job.rate_in) and ask.rate_out <= int(job.rate_out)
        for ask in provider.asks
    )


def _job_cost(job: JobRow, provider: ProviderFacts) -> int:
    return min(
        ask.rate_in * job.units_in + ask.rate_out * job.units_out for ask in provider.asks if ask.sla == job.sla_secs
    )
