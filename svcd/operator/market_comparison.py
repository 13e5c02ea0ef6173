"""Compare a model's configuration with the market's catalogue and with the prices of other providers."""

from collections.abc import Collection
from typing import Final

from common.checks import CheckRow, fact, right, right_or_wrong, unknown, wrong
from common.pricing.model_input import EMBEDDINGS_ENDPOINT, IMAGES_ENDPOINT, TEXT_ENDPOINTS, Modality
from svcd.backends.settings import OpenAISettings
from svcd.config import ModelConfig
from svcd.coordinator.client import PostedAsk

_MODALITY_BY_ENDPOINT: Final[dict[str, Modality]] = {
    EMBEDDINGS_ENDPOINT: "embeddings",
    IMAGES_ENDPOINT: "image",
    **dict.fromkeys(TEXT_ENDPOINTS, "text"),
}
_MIN_UNUSUAL_RATIO: Final = 10
_MIN_WRONG_RATIO: Final = 1000


def check_modality(model: ModelConfig, endpoint: str | None) -> CheckRow | None:
    """Compare the model's modality in the market with `serves` and with the backend's route.

    Return None if the market publishes no endpoint for the model, or an endpoint of unknown modality.
    """
    kind = _MODALITY_BY_ENDPOINT.get(endpoint or "")
    if kind is None:
        return None
    name, sold = f"kind of {model.name}", f"the market sells {kind} ({endpoint})"
    if kind not in model.serves:
        served = ", ".join(sorted(model.serves))
        return wrong(name, f"{sold}, but serves has {served}", "correct serves and [model.backend]")
    if isinstance(model.backend, OpenAISettings) and model.backend.modality != kind:
        return wrong(name, f"{sold}, but the backend's api is {model.backend.api}", "correct api")
    return right(name, f"{kind} ({endpoint})")


def check_prices(model: ModelConfig, model_id: int, others: Collection[PostedAsk]) -> CheckRow:
    """Compare each ask with the lowest price of other providers: in the ask's window, or otherwise in any window."""
    name, worst = f"prices of {model.name}", 1.0
    details = []
    of_model = [ask for ask in others if ask.model_id == model_id]
    if not of_model:
        return unknown(name, "no other provider has an ask for this model")
    for window, own in sorted(model.asks.items()):
        compared = [ask for ask in of_model if ask.sla == window] or of_model
        pairs = (
            (own.rate_in, min(ask.rate_in for ask in compared)),
            (own.rate_out, min(ask.rate_out for ask in compared)),
        )
        ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
        farthest = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=1.0)
        worst = max(worst, farthest, 1 / farthest)
        details.append(f"{farthest:.3g} x in the window of {window} s")
    found = f"as a multiple of the lowest price of other providers: {', '.join(details)}"
    remedy = "rates are base units per 10^6 units; see rate_in and rate_out"
    if _MIN_UNUSUAL_RATIO <= worst < _MIN_WRONG_RATIO:
        return fact(name, found, remedy)
    return right_or_wrong(name, worst < _MIN_WRONG_RATIO, found, remedy)
