"""Compare a model's configuration with what the market publishes, and with the prices of other providers."""

from collections.abc import Collection
from typing import Final

from common.pricing.model_input import EMBEDDINGS_ENDPOINT, IMAGES_ENDPOINT, TEXT_ENDPOINTS, Modality
from svcd.backends.settings import OpenAISettings
from svcd.config import ModelConfig
from svcd.coordinator.client import PostedAsk

_KINDS: Final[dict[str, Modality]] = {
    EMBEDDINGS_ENDPOINT: "embeddings",
    IMAGES_ENDPOINT: "image",
    **dict.fromkeys(TEXT_ENDPOINTS, "text"),
}
_UNUSUAL_RATIO: Final = 10
_WRONG_RATIO: Final = 1000


def kind_of(model: ModelConfig, endpoint: str | None) -> tuple[bool, str] | None:
    """Compare the kind that the model is sold as with what is served, and with the route of its server.

    Return None if the market publishes no route, or one that is not known here.
    """
    kind = _KINDS.get(endpoint or "")
    if kind is None:
        return None
    served = ", ".join(sorted(model.serves))
    if kind not in model.serves:
        return False, f"the market sells {kind} ({endpoint}), serves has {served}: correct serves and [model.backend]"
    if isinstance(model.backend, OpenAISettings) and model.backend.modality != kind:
        return False, f"the market sells {kind} ({endpoint}), the backend's api is {model.backend.api}: correct api"
    return True, f"{kind} ({endpoint})"


def prices_beside(model: ModelConfig, model_id: int, others: Collection[PostedAsk]) -> tuple[bool | None, str]:
    """Compare each ask with the lowest price of other providers, in the same window if it has any."""
    right: bool | None = True
    details = []
    of_model = [ask for ask in others if ask.model_id == model_id]
    if not of_model:
        return None, "nobody else asks"
    for window, own in sorted(model.asks.items()):
        beside = [ask for ask in of_model if ask.sla == window] or of_model
        pairs = ((own.rate_in, min(ask.rate_in for ask in beside)), (own.rate_out, min(ask.rate_out for ask in beside)))
        ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
        farthest = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=1.0)
        distance = max(farthest, 1 / farthest)
        if distance >= _WRONG_RATIO:
            right = False
        elif distance >= _UNUSUAL_RATIO and right:
            right = None
        details.append(f"{farthest:.3g} x for {window} s")
    remedy = "" if right else ": rates are base units per 10^6 units; see rate_in and rate_out"
    return right, f"compared with the lowest price of other providers: {', '.join(details)}{remedy}"
