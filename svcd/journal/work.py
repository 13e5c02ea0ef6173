"""Input and output of a backend's work."""

import attrs

from common.pricing.model_input import Modality
from common.tab.terms import TabTerms


@attrs.frozen(slots=True)
class ModelWork:
    """Opened and checked input of one job, one item of a bundle or one request of a tab.

    `deadline` is the loop time (`trio.current_time()`) after which the output would come too late to seal, upload and
    settle within the window. `item_number` is the number of the item or request, or None for a single job.
    """

    job_id: bytes
    model: str  # name in the market, which the backend translates
    modality: Modality
    input: dict[str, object]
    units_in: int
    units_out: int
    deadline: float
    item_number: int | None = None

    @property
    def id(self) -> str:
        """Return the unique id of the work."""
        return "0x" + self.job_id.hex() + ("" if self.item_number is None else f"-{self.item_number}")


@attrs.frozen(slots=True)
class BundleWork:
    """Opened and checked items of one bundle, in the bundle's order, with their custom ids."""

    items: tuple[ModelWork, ...]
    custom_ids: tuple[str | None, ...]
    deadline: float


@attrs.frozen(slots=True)
class TabWork:
    """Opened and checked terms of one tab. `serves` has the modalities of the tab's model."""

    terms: TabTerms
    serves: frozenset[Modality]
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
