"""Cut the lines of a batch into jobs, and choose the bid and provider of each job.

a line without rates                  goes to a provider in the coordinator's plan for its model, at the provider's ask
a line with rates, and `providers`    goes to one of these providers, in turn
a line with rates, no `providers`     becomes an open order of its own, sealed to the escrow

Lines share a job only if the job's provider announces that it accepts bundles.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, Final

import attrs

from common.bundle import convert_to_output_units
from svc.core.bids import OPEN_PROVIDER, Bid, Rates
from svc.core.bundles import UNBUNDLED_LIMITS, BundleLimits, bundle_rates, count_lines_for_job
from svc.core.order_request import PricedRequest
from svc.errors import PlanShort
from svc.records import Allocation, Ask, ModelPlan

MAX_PLAN_MODELS: Final = 16  # models per plan request

FindBundleLimits = Callable[[int, int], BundleLimits]
"""Function that returns the limits of one job, given a provider id and a model id."""


@attrs.frozen(slots=True)
class ModelDemand:
    """Number and total units of the lines of one model that need a plan."""

    name: str
    model_id: int
    line_count: int
    units_in: int
    units_out: int


@attrs.frozen(slots=True)
class JobLines:
    """Consecutive lines of a batch that share one job."""

    first_line_number: int
    lines: Sequence[PricedRequest]
    bid: Bid


def sum_demands(lines: Sequence[PricedRequest]) -> list[ModelDemand]:
    """Return each model's demand, summed over the lines without rates. Lines with rates need no plan."""
    totals: dict[str, ModelDemand] = {}
    for line in lines:
        if line.rates is None:
            name = line.model.id
            total = totals.get(name, ModelDemand(name, line.model.svc.model_id, 0, 0, 0))
            totals[name] = attrs.evolve(
                total,
                line_count=total.line_count + 1,
                units_in=total.units_in + line.units.units_in,
                units_out=total.units_out + line.units.units_out,
            )
    return list(totals.values())


def plan_bodies(demands: Sequence[ModelDemand], completion_window: str) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the plan requests, each for at most MAX_PLAN_MODELS models."""
    for at in range(0, len(demands), MAX_PLAN_MODELS):
        batch_of_models = demands[at : at + MAX_PLAN_MODELS]
        models = [
            {
                "model_id": demand.model_id,
                "lines": demand.line_count,
                "units_in": demand.units_in,
                "units_out": demand.units_out,
            }
            for demand in batch_of_models
        ]
        yield {"completion_window": completion_window, "models": models}


def market_rates(asks: Sequence[Ask], *, for_all_providers: bool) -> Rates:
    """Return the rates to offer at current prices.

    By default, return the rates of the ask with the lowest sum of rates. With `for_all_providers`, return the highest
    `rate_in` and the highest `rate_out`, so that each provider with an ask may claim.
    """
    if for_all_providers:
        return Rates(max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks))
    cheapest = min(asks, key=lambda ask: (ask.rate_in + ask.rate_out, ask.provider_id))
    return Rates(cheapest.rate_in, cheapest.rate_out)


@attrs.define(slots=True)
class _ProviderShare:
    """Planned share of one provider. `job_count`, `used_units` and `line_count` count the work assigned so far."""

    allocation: Allocation
    limits: BundleLimits
    bid: Bid = attrs.field(init=False)
    job_count: int = 0
    used_units: int = 0
    line_count: int = 0

    def __attrs_post_init__(self) -> None:
        share = self.allocation
        self.bid = Bid(Rates(share.rate_in, share.rate_out), share.provider_id, share.box_key)

    def try_add_job(self, lines: Sequence[PricedRequest]) -> bool:
        """Assign a job with these lines to the provider. Return False if the provider has no capacity for the job.

        The provider may get one job per line that the plan allocates to it. A provider that accepts bundles and whose
        speed is known may get more jobs, as long as all units fit into one bundle of maximum size per allocated line.
        """
        rates = bundle_rates(self.bid.rates)
        units = sum(
            convert_to_output_units(line.units.units_in, line.units.units_out, rates.rate_in, rates.rate_out)
            for line in lines
        )
        may_exceed_jobs = self.limits.max_units is not None and self.limits.max_items > 1
        max_units = self.allocation.lines * (self.limits.max_units or 0) if may_exceed_jobs else 0
        if self.job_count >= self.allocation.lines and self.used_units + units > max_units:
            return False
        self.job_count, self.used_units, self.line_count = (
            self.job_count + 1,
            self.used_units + units,
            self.line_count + len(lines),
        )
        return True


class BidChooser:
    """Cuts lines into jobs, in file order, and chooses the bid of each job.

    `providers`: ids and box keys of the providers that get the lines with rates, in turn.
    """

    def __init__(self, providers: Sequence[tuple[int, str]], find_limits: FindBundleLimits) -> None:
        self._next_provider = cycle(providers or [(OPEN_PROVIDER, None)])
        self._find_limits = find_limits
        self._shares: dict[int, list[_ProviderShare]] = {}
        self._shares_with_room: dict[int, deque[_ProviderShare]] = {}
        self._bids_by_terms: dict[tuple[int, int, int], Bid] = {}

    def use_plans(self, plans: Sequence[ModelPlan]) -> None:
        """Assign lines without rates to providers as these plans say."""
        for plan in plans:
            self._shares[plan.model_id] = [
                _ProviderShare(share, self._find_limits(share.provider_id, plan.model_id)) for share in plan.allocation
            ]
            self._shares_with_room[plan.model_id] = deque(self._shares[plan.model_id])

    def cut_into_jobs(self, lines: Sequence[PricedRequest]) -> Iterator[JobLines]:
        """Cut the lines into jobs. Raises PlanShort if the network lacks capacity for some lines."""
        demands = {demand.model_id: demand for demand in sum_demands(lines)}
        at = 0
        while at < len(lines):
            line = lines[at]
            if line.rates is None:
                found = self._cut_planned_job(lines, at)
                if found is None:
                    demand = demands[line.model.svc.model_id]
                    raise PlanShort(demand.name, sum(self.planned_lines(demand.model_id)), demand.line_count)
                count, bid = found
            else:
                bid = self._next_bid(line.rates)
                count = count_lines_for_job(lines, at, line.rates, self._bundle_limits(bid, line))
            yield JobLines(at + 1, lines[at : at + count], bid)
            at += count

    def planned_lines(self, model_id: int) -> list[int]:
        """Return the number of lines that each provider of a model's plan was given, in the order of the plan."""
        return [share.line_count for share in self._shares.get(model_id, [])]

    def _cut_planned_job(self, lines: Sequence[PricedRequest], at: int) -> tuple[int, Bid] | None:
        shares = self._shares_with_room.get(lines[at].model.svc.model_id, deque())
        while shares:
            share = shares[0]
            count = count_lines_for_job(lines, at, share.bid.rates, share.limits)
            if share.try_add_job(lines[at : at + count]):
                return count, share.bid
            shares.popleft()
        return None

    def _bundle_limits(self, bid: Bid, line: PricedRequest) -> BundleLimits:
        return (
            UNBUNDLED_LIMITS
            if bid.designated == OPEN_PROVIDER
            else self._find_limits(bid.designated, line.model.svc.model_id)
        )

    def _next_bid(self, rates: Rates) -> Bid:
        provider, box_key = next(self._next_provider)
        terms = (rates.rate_in, rates.rate_out, provider)
        known = self._bids_by_terms.get(terms)
        if known is None:
            known = self._bids_by_terms[terms] = Bid(rates, provider, box_key)
        return known
