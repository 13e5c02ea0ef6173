"""Work as svcd passes it to a backend, with defaults for the fields that a test does not set."""

import math

from common.pricing.model_input import Modality
from svcd.journal.work import ModelWork


def work_on(
    model_input: dict[str, object] | None = None,
    *,
    modality: Modality = "text",
    units_in: int = 1000,
    units_out: int = 100,
    deadline: float = math.inf,
    model: str = "market/model",
) -> ModelWork:
    return ModelWork(
        job_id=bytes(range(32)),
        model=model,
        modality=modality,
        input={"input": "hello"} if model_input is None else model_input,
        units_in=units_in,
        units_out=units_out,
        deadline=deadline,
    )
