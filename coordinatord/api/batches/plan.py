"""Plan of a batch: the providers that could take its lines now, and their prices. Nothing is reserved.

POST /v1/batches answers a body without `input_file_id` with a plan.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from common.api import limits
from common.api.batches import PlannedModelShape, PlannedShare, PlanShape
from common.api.fields import UINT32, UINT64, ListOf, NestedObject, Text, Uint, body_field, read_object
from common.api.shapes import Digits
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.batches.allocation import allocate_lines
from coordinatord.api.book.candidates_sql import Demand, LiveAsk, read_candidates
from coordinatord.storage.database.connections import Database

BATCH_WINDOWS_S: Final = limits.BATCH_WINDOWS_S
"""Length of each batch window in seconds, by label. Lines are signed with this length as their SLA."""
MAX_MODELS: Final = limits.MAX_PLAN_MODELS


@attrs.frozen(slots=True)
class ModelLines:
    """Lines of one model. The units are totals of these lines."""

    model_id: int = body_field(UINT32)
    lines: int = body_field(Uint(32, minimum=1), "number of lines for this model", example=100)
    units_in: int = body_field(UINT64, "input units of all these lines together", example=1100)
    units_out: int = body_field(UINT64, "output units of all these lines together", example=6400)


@attrs.frozen(slots=True)
class PlanBody:
    completion_window: str = body_field(Text(16), "`1h` or `24h`: the window that the lines will be signed with")
    models: tuple[ModelLines, ...] = body_field(ListOf(NestedObject(ModelLines), MAX_MODELS))


def read_plan(body: Mapping[str, object]) -> PlanBody:
    plan = read_object(PlanBody, body)
    if plan.completion_window not in BATCH_WINDOWS_S:
        windows = " or ".join(BATCH_WINDOWS_S)
        raise Refused(f"completion_window must be {windows}", "completion_window", "invalid_completion_window")
    if not plan.models:
        raise Refused(f"models must have 1 to {MAX_MODELS} items", "models")
    return plan


@attrs.frozen(slots=True)
class BatchPlanner:
    database: Database
    liveness_ms: int

    async def plan_models(self, body: PlanBody) -> PlanShape[Digits]:
        """Plan each model of the body, in its order. Models share the providers' capacity."""
        sla = BATCH_WINDOWS_S[body.completion_window]
        by_model: list[dict[int, LiveAsk]] = []
        for model in body.models:
            demand = Demand(model.model_id, sla, model.units_in, model.units_out)
            asks = await read_candidates(self.database, demand, self.liveness_ms, None)
            by_model.append({ask.provider_id: ask for ask in asks if ask.room > 0})
        demands = [
            (model.lines, {provider_id: _lines_cost(ask, model) for provider_id, ask in asks.items()})
            for model, asks in zip(body.models, by_model, strict=True)
        ]
        shares = allocate_lines(demands, {ask.provider_id: ask.room for asks in by_model for ask in asks.values()})
        return PlanShape(
            tuple(
                PlannedModelShape(
                    model_id=str(model.model_id),
                    lines=str(model.lines),
                    allocation=tuple(_planned_share(of_model[provider], lines) for provider, lines in share.items()),
                )
                for model, of_model, share in zip(body.models, by_model, shares, strict=True)
            )
        )


def _planned_share(ask: LiveAsk, lines: int) -> PlannedShare[Digits]:
    return PlannedShare(
        provider_id=str(ask.provider_id),
        box_key=hex_of(ask.box_key),
        rate_in=ask.rate_in,
        rate_out=ask.rate_out,
        lines=str(lines),
    )


def _lines_cost(ask: LiveAsk, model: ModelLines) -> int:
    return int(ask.rate_in) * model.units_in + int(ask.rate_out) * model.units_out
