"""Jobs of a batch: which consecutive lines share a job, its bid and its provider.

neither rate         planned by the network for the line's model: its providers, at their asks, in file order
a rate, providers    the given providers in turn
a rate, none given   open orders, sealed to the escrow, one for each line

Lines share a job only if its provider announces bundles.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, Final

import attrs

from common.bundle import output_units
from svc.core.bids import OPEN, Bid, Rates
from svc.core.bundles import SINGLE, BundleLimits, bundle_rates, count_fitting
from svc.core.order_request import PricedRequest
from svc.errors import PlanShort
from svc.records import Allocation, Ask, ModelPlan

MAX_PLAN_MODELS: Final = 16  # per plan request

LimitsOf = Callable[[int, int], BundleLimits]
"""Limits of a job, by provider and model id."""


@attrs.frozen(slots=True)
class ModelDemand:
    """Lines of one model to plan, with their total units."""

    name: str
    model_id: int
    lines: int
    units_in: int
    units_out: int


@attrs.frozen(slots=True)
class JobLines:
    """Consecutive lines of one job. `number` is the first line's."""

    number: int
    lines: Sequence[PricedRequest]
    bid: Bid


def demands(lines: Sequence[PricedRequest]) -> list[ModelDemand]:
    """Return the demand per model, in the order of first appearance. Lines with rates need no plan."""
    totals: dict[str, ModelDemand] = {}
    for line in lines:
        if line.rates is None:
            name = line.model.id
            total = totals.get(name, ModelDemand(name, line.model.svc.model_id, 0, 0, 0))
            totals[name] = attrs.evolve(
                total,
                lines=total.lines + 1,
                units_in=total.units_in + line.units.units_in,
                units_out=total.units_out + line.units.units_out,
            )
    return list(totals.values())


def plan_bodies(wanted: Sequence[ModelDemand], completion_window: str) -> Iterator[dict[str, Any]]:
    """Yield the plan requests, each for at most sixteen models."""
    for at in range(0, len(wanted), MAX_PLAN_MODELS):
        batch_of_models = wanted[at : at + MAX_PLAN_MODELS]
        models = [
            {
                "model_id": demand.model_id,
                "lines": demand.lines,
                "units_in": demand.units_in,
                "units_out": demand.units_out,
            }
            for demand in batch_of_models
        ]
        yield {"completion_window": completion_window, "models": models}


def market_rates(asks: Sequence[Ask], *, for_all_providers: bool) -> Rates:
    """Return the rates to offer at current prices.

    These are the rates of the cheapest ask by sum, or with `for_all_providers` the highest of each, so that all
    providers with an ask may claim.
    """
    if for_all_providers:
        return Rates(max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks))
    cheapest = min(asks, key=lambda ask: (ask.rate_in + ask.rate_out, ask.provider_id))
    return Rates(cheapest.rate_in, cheapest.rate_out)


@attrs.define(slots=True)
class _Share:
    """Planned jobs of one provider. `used` counts its jobs and their units."""

    allocation: Allocation
    limits: BundleLimits
    bid: Bid = attrs.field(init=False)
    jobs: int = 0
    units: int = 0
    lines: int = 0

    def __attrs_post_init__(self) -> None:
        share = self.allocation
        self.bid = Bid(Rates(share.rate_in, share.rate_out), share.provider_id, share.box_key)

    def take(self, lines: Sequence[PricedRequest]) -> bool:
        """Add a job of these lines if the provider has room for it.

        Each planned slot takes one job, and further ones within the units that it delivers in time.
        """
        rates = bundle_rates(self.bid.rates)
        units = sum(
            output_units(line.units.units_in, line.units.units_out, rates.rate_in, rates.rate_out) for line in lines
        )
        in_time = self.limits.units is not None and self.limits.items > 1
        room = self.allocation.lines * (self.limits.units or 0) if in_time else 0
        if self.jobs >= self.allocation.lines and self.units + units > room:
            return False
        self.jobs, self.units, self.lines = self.jobs + 1, self.units + units, self.lines + len(lines)
        return True


class Bids:
    """Bids for the lines, in file order.

    `providers`: ids and box keys to which lines with rates are designated in turn. Equal bids are the same object, so
    they can be cached by identity.
    """

    def __init__(self, providers: Sequence[tuple[int, str]], limits_of: LimitsOf) -> None:
        self._next_provider = cycle(providers or [(OPEN, None)])
        self._limits_of = limits_of
        self._shares: dict[int, list[_Share]] = {}
        self._with_room: dict[int, deque[_Share]] = {}
        self._known: dict[tuple[int, int, int], Bid] = {}

    def plan(self, plans: Sequence[ModelPlan]) -> None:
        """Use these plans for lines without rates."""
        for plan in plans:
            self._shares[plan.model_id] = [
                _Share(share, self._limits_of(share.provider_id, plan.model_id)) for share in plan.allocation
            ]
            self._with_room[plan.model_id] = deque(self._shares[plan.model_id])

    def jobs(self, lines: Sequence[PricedRequest]) -> Iterator[JobLines]:
        """Cut the lines into jobs. Raises PlanShort if the network has no capacity for every line."""
        wanted = {demand.model_id: demand for demand in demands(lines)}
        at = 0
        while at < len(lines):
            line = lines[at]
            if line.rates is None:
                found = self._planned(lines, at)
                if found is None:
                    demand = wanted[line.model.svc.model_id]
                    raise PlanShort(demand.name, sum(self.planned_lines(demand.model_id)), demand.lines)
                count, bid = found
            else:
                bid = self._bid(line.rates)
                count = count_fitting(lines, at, line.rates, self._limits(bid, line))
            yield JobLines(at + 1, lines[at : at + count], bid)
            at += count

    def planned_lines(self, model_id: int) -> list[int]:
        """Return the lines that each provider of a model's plan has taken, in the plan's order."""
        return [share.lines for share in self._shares.get(model_id, [])]

    def _planned(self, lines: Sequence[PricedRequest], at: int) -> tuple[int, Bid] | None:
        shares = self._with_room.get(lines[at].model.svc.model_id, deque())
        while shares:
            share = shares[0]
            count = count_fitting(lines, at, share.bid.rates, share.limits)
            if share.take(lines[at : at + count]):
                return count, share.bid
            shares.popleft()
        return None

    def _limits(self, bid: Bid, line: PricedRequest) -> BundleLimits:
        return SINGLE if bid.designated == OPEN else self._limits_of(bid.designated, line.model.svc.model_id)

    def _bid(self, rates: Rates) -> Bid:
        provider, box_key = next(self._next_provider)
        terms = (rates.rate_in, rates.rate_out, provider)
        known = self._known.get(terms)
        if known is None:
            known = self._known[terms] = Bid(rates, provider, box_key)
        return known
