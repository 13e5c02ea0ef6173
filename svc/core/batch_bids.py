"""Bids and providers for the lines of a batch.

neither rate         planned by the network for the line's model: its providers, at their asks, in file order
a rate, providers    the given providers in turn
a rate, none given   an open order, sealed to the escrow
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from typing import Any, Final

import attrs

from svc.core.bids import OPEN, Bid, Rates
from svc.core.order_request import PricedRequest
from svc.errors import PlanShort
from svc.records import Ask, ModelPlan

MAX_PLAN_MODELS: Final = 16  # per plan request


@attrs.frozen(slots=True)
class ModelDemand:
    """Lines of one model to plan, with their total units."""

    name: str
    model_id: int
    lines: int
    units_in: int
    units_out: int


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


def check_plan(wanted: Sequence[ModelDemand], plans: Sequence[ModelPlan]) -> None:
    """Raises PlanShort if the network has no capacity for every line."""
    allocated = {plan.model_id: sum(share.lines for share in plan.allocation) for plan in plans}
    for demand in wanted:
        if allocated.get(demand.model_id, 0) < demand.lines:
            raise PlanShort(demand.name, allocated.get(demand.model_id, 0), demand.lines)


class Bids:
    """Bids for the lines, in file order.

    `providers`: ids and box keys to which lines with rates are designated in turn. Equal bids are the same object, so
    they can be cached by identity.
    """

    def __init__(self, providers: Sequence[tuple[int, str]]) -> None:
        self._next_provider = cycle(providers or [(OPEN, None)])
        self._planned: dict[int, Iterator[Bid]] = {}
        self._known: dict[tuple[int, int, int], Bid] = {}

    def plan(self, plans: Sequence[ModelPlan]) -> None:
        """Use these plans for lines without rates."""
        self._planned = {plan.model_id: _planned(plan) for plan in plans}

    def bid(self, model_id: int, rates: Rates | None) -> Bid:
        if rates is None:
            return next(self._planned[model_id])
        provider, box_key = next(self._next_provider)
        terms = (rates.rate_in, rates.rate_out, provider)
        known = self._known.get(terms)
        if known is None:
            known = self._known[terms] = Bid(rates, provider, box_key)
        return known


def _planned(plan: ModelPlan) -> Iterator[Bid]:
    for share in plan.allocation:
        yield from repeat(Bid(Rates(share.rate_in, share.rate_out), share.provider_id, share.box_key), share.lines)
