"""Plan of a batch: the providers that could take its lines now, and their prices. Nothing is reserved.

POST /v1/batches answers a body without `input_file_id` with a plan.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from common.api import limits
from common.api.batches import PlannedModelShape, PlannedShare, PlanShape
from common.api.fields import UINT32, UINT64, Nested, Several, Text, Uint, read_object, wire
from common.api.shapes import Digits
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.batches.allocation import Bidder, LineDemand, allocate
from coordinatord.api.book import candidates_sql
from coordinatord.api.book.candidates_sql import LiveAsk
from coordinatord.storage.database.connections import Database

WINDOWS: Final = limits.BATCH_WINDOWS
"""Windows of batches by their labels: the SLA that the lines are signed with."""
MAX_MODELS: Final = limits.PLAN_MODELS


@attrs.frozen(slots=True)
class ModelLines:
    """The lines of one model; the units are totals over them."""

    model_id: int = wire(UINT32)
    lines: int = wire(Uint(32, minimum=1), "how many lines order the model", example=100)
    units_in: int = wire(UINT64, "input units of all these lines together", example=1100)
    units_out: int = wire(UINT64, "output units of all these lines together", example=6400)


@attrs.frozen(slots=True)
class PlanBody:
    completion_window: str = wire(Text(16), "`1h` or `24h`: the window that the lines will be signed with")
    models: tuple[ModelLines, ...] = wire(Several(Nested(ModelLines), MAX_MODELS))


def read_plan(body: Mapping[str, object]) -> PlanBody:
    plan = read_object(PlanBody, body)
    if plan.completion_window not in WINDOWS:
        windows = " or ".join(WINDOWS)
        raise Refused(f"completion_window must be {windows}", "completion_window", "invalid_completion_window")
    if not plan.models:
        raise Refused(f"models must name 1 to {MAX_MODELS} models", "models")
    return plan


@attrs.frozen(slots=True)
class Plans:
    database: Database
    liveness_ms: int

    async def plan(self, body: PlanBody) -> PlanShape[Digits]:
        """Plan each model of the body, in its order. Models share the providers' capacity."""
        sla = WINDOWS[body.completion_window]
        takers = await candidates_sql.read_takers(
            self.database, {m.model_id for m in body.models}, sla, self.liveness_ms
        )
        by_model = [{t.provider_id: t for t in takers if t.model_id == model.model_id} for model in body.models]
        demands = [
            LineDemand(model.lines, [Bidder(t.provider_id, _cost(t, model)) for t in of_model.values()])
            for model, of_model in zip(body.models, by_model, strict=True)
        ]
        shares = allocate(demands, {taker.provider_id: taker.room for taker in takers})
        return PlanShape(
            tuple(
                PlannedModelShape(
                    model_id=str(model.model_id),
                    lines=str(model.lines),
                    allocation=tuple(_share(of_model[provider], lines) for provider, lines in taken.items()),
                )
                for model, of_model, taken in zip(body.models, by_model, shares, strict=True)
            )
        )


def _share(taker: LiveAsk, lines: int) -> PlannedShare[Digits]:
    return PlannedShare(
        provider_id=str(taker.provider_id),
        box_key=hex_of(taker.box_key),
        rate_in=taker.rate_in,
        rate_out=taker.rate_out,
        lines=str(lines),
    )


def _cost(taker: LiveAsk, model: ModelLines) -> int:
    return int(taker.rate_in) * model.units_in + int(taker.rate_out) * model.units_out
