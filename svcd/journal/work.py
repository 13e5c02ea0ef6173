"""Input and output of a backend."""

import attrs

from common.pricing.model_input import Modality


@attrs.frozen(slots=True)
class ModelWork:
    """Opened and checked input of one job, or of one item of a bundle.

    `deadline` is the loop time (`trio.current_time()`) by which the output is needed to seal, upload and settle it
    within the SLA. `item` is the item's number in its bundle.
    """

    job_id: bytes
    model: str  # the market's name; the backend translates it
    modality: Modality
    input: dict[str, object]
    units_in: int
    units_out: int
    deadline: float
    item: int | None = None

    @property
    def id(self) -> str:
        """Return the unique id of the work."""
        return "0x" + self.job_id.hex() + ("" if self.item is None else f"-{self.item}")


@attrs.frozen(slots=True)
class BundleWork:
    """Opened and checked items of one bundle, in its order, with the custom ids of their results."""

    items: tuple[ModelWork, ...]
    custom_ids: tuple[str | None, ...]
    deadline: float


@attrs.frozen(slots=True)
class WorkOutput:
    """Output of one job.

    `completion_tok` is the number of units charged, at most the order's `units_out`. `usage` is included in the sealed
    result for the client.
    """

    output: object
    completion_tok: int
    usage: dict[str, object] = attrs.field(factory=dict)
