"""Work of a backend: its input and its output."""

import attrs

from common.pricing.model_input import Modality


@attrs.frozen(slots=True)
class ModelWork:
    """One job, opened and checked. `deadline` is in the event loop's clock (`trio.current_time()`): the moment by which
    the output must be there so that it can still be sealed, uploaded and settled within the SLA."""

    job_id: bytes
    model: str  # the market's name; the backend maps it to its own
    modality: Modality
    input: dict[str, object]
    units_in: int
    units_out: int
    deadline: float


@attrs.frozen(slots=True)
class WorkOutput:
    """`completion_tok` is what is charged: units produced, at most the order's `units_out`. `usage` is what the sealed
    result tells the client about it."""

    output: object
    completion_tok: int
    usage: dict[str, object] = attrs.field(factory=dict)
