"""Bids and providers of a batch's lines.

neither rate         planned by the network for the line's model: its providers, at their asks, in file order
a rate, providers    the given providers in turn
a rate, none given   an open order, sealed to the escrow
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from typing import Any, Final

import attrs

from svc.core.bids import OPEN, Bid, Rates
from svc.core.order_request import Shaped
from svc.errors import PlanShort
from svc.records import Ask, ModelPlan

MOST_MODELS: Final = 16  # of one plan request


@attrs.frozen(slots=True)
class ModelDemand:
    """Lines of one model that are to be planned; the units are totals over them."""

    name: str
    model_id: int
    lines: int
    units_in: int
    units_out: int


def demands(lines: Sequence[Shaped]) -> list[ModelDemand]:
    """Per model, in the order of first appearance; lines that carry rates need no plan."""
    totals: dict[str, ModelDemand] = {}
    for line in lines:
        if line.rates is None:
            name = line.model.id
            before = totals.get(name, ModelDemand(name, line.model.svc.model_id, 0, 0, 0))
            totals[name] = attrs.evolve(
                before,
                lines=before.lines + 1,
                units_in=before.units_in + line.units.units_in,
                units_out=before.units_out + line.units.units_out,
            )
    return list(totals.values())


def plan_bodies(wanted: Sequence[ModelDemand], completion_window: str) -> Iterator[dict[str, Any]]:
    """The plan requests: one for every sixteen models."""
    for at in range(0, len(wanted), MOST_MODELS):
        some = wanted[at : at + MOST_MODELS]
        models = [
            {"model_id": one.model_id, "lines": one.lines, "units_in": one.units_in, "units_out": one.units_out}
            for one in some
        ]
        yield {"completion_window": completion_window, "models": models}


def market_rates(asks: Sequence[Ask], *, everyone: bool) -> Rates:
    """Rates at which lines are offered at present prices: those of the cheapest ask, by the sum of its two rates; or
    with `everyone` the highest of each, so that all who ask may claim."""
    if everyone:
        return Rates(max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks))
    cheapest = min(asks, key=lambda ask: (ask.rate_in + ask.rate_out, ask.provider_id))
    return Rates(cheapest.rate_in, cheapest.rate_out)


def check_plan(wanted: Sequence[ModelDemand], plans: Sequence[ModelPlan]) -> None:
    """Raises PlanShort when the network would not take every line now."""
    allocated = {plan.model_id: sum(share.lines for share in plan.allocation) for plan in plans}
    for one in wanted:
        if allocated.get(one.model_id, 0) < one.lines:
            raise PlanShort(one.name, allocated.get(one.model_id, 0), one.lines)


class Bids:
    """A bid for each line, asked for in the order of the file.

    `providers`: id and box key of those that lines with rates are designated to in turn. Equal bids are one object:
    what is sent on with its lines is then sent once.
    """

    def __init__(self, providers: Sequence[tuple[int, str]]) -> None:
        self._turns = cycle(providers or [(OPEN, None)])
        self._planned: dict[int, Iterator[Bid]] = {}
        self._known: dict[tuple[int, int, int], Bid] = {}

    def plan(self, plans: Sequence[ModelPlan]) -> None:
        """Lines without rates go where these have them."""
        self._planned = {plan.model_id: _planned(plan) for plan in plans}

    def bid(self, model_id: int, rates: Rates | None) -> Bid:
        if rates is None:
            return next(self._planned[model_id])
        provider, box_key = next(self._turns)
        terms = (rates.rate_in, rates.rate_out, provider)
        known = self._known.get(terms)
        if known is None:
            known = self._known[terms] = Bid(rates, provider, box_key)
        return known


def _planned(plan: ModelPlan) -> Iterator[Bid]:
    for share in plan.allocation:
        yield from repeat(Bid(Rates(share.rate_in, share.rate_out), share.provider_id, share.box_key), share.lines)
