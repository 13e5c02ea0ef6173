"""The body of a batch's plan: POST /v1/batches without a file answers it, with 402."""

import msgspec

from common.scalars import hex_of
from coordinatord.api.views import Bytes32, Digits
from coordinatord.service.plan import ModelPlan


class PlannedShare(msgspec.Struct):
    provider_id: Digits
    box_key: Bytes32
    rate_in: Digits
    rate_out: Digits
    lines: Digits


class PlannedModel(msgspec.Struct):
    model_id: Digits
    lines: Digits
    allocation: list[PlannedShare]


class Plan(msgspec.Struct):
    plan: list[PlannedModel]


def plan(models: list[ModelPlan]) -> Plan:
    return Plan(
        [
            PlannedModel(
                model_id=str(model.model_id),
                lines=str(model.lines),
                allocation=[
                    PlannedShare(
                        provider_id=str(share.taker.provider_id),
                        box_key=hex_of(share.taker.box_key),
                        rate_in=share.taker.rate_in,
                        rate_out=share.taker.rate_out,
                        lines=str(share.lines),
                    )
                    for share in model.allocation
                ],
            )
            for model in models
        ]
    )
