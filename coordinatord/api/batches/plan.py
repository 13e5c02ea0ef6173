"""A batch's plan: which providers could take its lines now, and at what price. Nothing is reserved.

It is what POST /v1/batches answers to a body without `input_file_id`: `read_plan` reads that body, `Plans.plan` answers
it, and `batches/routes.py` writes the answer.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from common.api import limits
from common.api.fields import UINT32, UINT64, Nested, Several, Text, Uint, read_object, wire
from common.refusal import Refused
from coordinatord.api.book import candidates_sql
from coordinatord.api.book.candidates_sql import LiveAsk
from coordinatord.storage.database.connections import Database

# Allocation of lines to providers: cheapest first, equal prices in turns, nobody above the room it has.


@attrs.frozen(slots=True)
class Bidder:
    """A provider that takes a model at a price. Of equal prices, the one that stands first in a list begins."""

    provider_id: int
    cost: int  # of the model's whole mix of units


@attrs.frozen(slots=True)
class LineDemand:
    """Lines of one model, and who would take them, in the order in which equals take turns."""

    lines: int
    bidders: Sequence[Bidder]


def allocate(wanted: Sequence[LineDemand], room: Mapping[int, int]) -> list[dict[int, int]]:
    """For each model, lines by provider; in order of price, without those that get none.

    `room` is how many jobs each provider can take, over all models: what an earlier model takes, a later one lacks.
    """
    left = dict(room)
    return [_fill(one, left) for one in wanted]


def _fill(wanted: LineDemand, left: dict[int, int]) -> dict[int, int]:
    taken: dict[int, int] = {}
    lines = wanted.lines
    for _, equals in groupby(sorted(wanted.bidders, key=lambda bidder: bidder.cost), key=lambda bidder: bidder.cost):
        turns = take_turns(lines, {bidder.provider_id: left[bidder.provider_id] for bidder in equals})
        for provider_id, share in turns.items():
            left[provider_id] -= share
            lines -= share
        taken |= {provider_id: share for provider_id, share in turns.items() if share}
    return taken


def take_turns(lines: int, room: Mapping[int, int]) -> dict[int, int]:
    """Lines of each when all take one line in turn, in order, until there are no lines or no room.

    Counted by rounds instead of lines: whoever has the least room is full after as many whole rounds.
    """
    taken = dict.fromkeys(room, 0)
    while lines and (open_to := [provider for provider in room if taken[provider] < room[provider]]):
        rounds = min(lines // len(open_to), *(room[provider] - taken[provider] for provider in open_to))
        if rounds:
            for provider in open_to:
                taken[provider] += rounds
            lines -= rounds * len(open_to)
        else:  # less than a round is left
            for provider in open_to[:lines]:
                taken[provider] += 1
            lines = 0
    return taken


WINDOWS: Final = limits.BATCH_WINDOWS
"""A batch's window by its label: the SLA that its lines are signed with."""
_MOST_MODELS: Final = limits.PLAN_MODELS


@attrs.frozen(slots=True)
class ModelLines:
    """The lines of one model; the units are totals over them."""

    model_id: int = wire(UINT32)
    lines: int = wire(Uint(32, least=1), "how many lines order the model", example=100)
    units_in: int = wire(UINT64, "input units of all these lines together", example=1100)
    units_out: int = wire(UINT64, "output units of all these lines together", example=6400)


@attrs.frozen(slots=True)
class PlanBody:
    completion_window: str = wire(Text(16), "`1h` or `24h`: the window that the lines will be signed with")
    models: tuple[ModelLines, ...] = wire(Several(Nested(ModelLines), _MOST_MODELS))


@attrs.frozen(slots=True)
class LineShare:
    """Lines that one provider could take, at its ask."""

    taker: LiveAsk
    lines: int


@attrs.frozen(slots=True)
class ModelAllocation:
    """`allocation` sums to fewer than `lines` when the network cannot take them all."""

    model_id: int
    lines: int
    allocation: list[LineShare]


def read_plan(body: Mapping[str, object]) -> PlanBody:
    plan = read_object(PlanBody, body)
    if plan.completion_window not in WINDOWS:
        windows = " or ".join(WINDOWS)
        raise Refused(f"completion_window must be {windows}", "completion_window", "invalid_completion_window")
    if not plan.models:
        raise Refused(f"models must name 1 to {_MOST_MODELS} models", "models")
    return plan


@attrs.frozen(slots=True)
class Plans:
    database: Database
    liveness_ms: int

    async def plan(self, body: PlanBody) -> list[ModelAllocation]:
        """One plan for each model of the body, in its order; they share the providers' capacity."""
        sla = WINDOWS[body.completion_window]
        takers = await candidates_sql.read_takers(
            self.database, {m.model_id for m in body.models}, sla, self.liveness_ms
        )
        by_model = {
            m.model_id: {taker.provider_id: taker for taker in takers if taker.model_id == m.model_id}
            for m in body.models
        }
        wanted = [
            LineDemand(model.lines, [Bidder(t.provider_id, _cost(t, model)) for t in by_model[model.model_id].values()])
            for model in body.models
        ]
        shares = allocate(wanted, {taker.provider_id: taker.room for taker in takers})
        return [
            ModelAllocation(
                model.model_id,
                model.lines,
                [LineShare(by_model[model.model_id][provider_id], lines) for provider_id, lines in taken.items()],
            )
            for model, taken in zip(body.models, shares, strict=True)
        ]


def _cost(taker: LiveAsk, model: ModelLines) -> int:
    return int(taker.rate_in) * model.units_in + int(taker.rate_out) * model.units_out
