"""Check an order request against the model, and compute its units."""

from collections.abc import Mapping

import attrs

from common.pricing.model_input import EMBEDDINGS_ENDPOINT, IMAGES_ENDPOINT, TEXT_ENDPOINTS, Modality, modality_of
from common.pricing.units import Units, units_of
from common.refusal import Refused
from svc.core.bids import Rate, Rates, read_rates
from svc.core.model_input import ModelInput, model_input, read_custom_id
from svc.core.params_schema import check_parameters
from svc.core.windows import DEFAULT_WINDOW, window_seconds
from svc.records import Model


@attrs.frozen(slots=True)
class OrderRequest:
    """Requested order. `endpoint` is None for the model's own endpoint. The only other value is `/v1/embeddings`."""

    model: str
    input: ModelInput
    window: str = DEFAULT_WINDOW
    provider: int | None = None
    rate_in: Rate | None = None
    rate_out: Rate | None = None
    units_out: int | None = None
    endpoint: str | None = None
    custom_id: str | None = None


@attrs.frozen(slots=True)
class PricedRequest:
    """Checked request with its units. Without `rates`, the order takes the best ask."""

    model: Model
    input: dict[str, object]
    modality: Modality
    units: Units
    sla_secs: int
    rates: Rates | None
    provider: int | None
    custom_id: str | None
    unlisted_parameters: tuple[str, ...]


def price_request(request: OrderRequest, model: Model) -> PricedRequest:
    """Check a request to buy, and compute its units. Raises Refused, which names the wrong field."""
    priced = price_for_candidates(request, model)
    _require_matching_endpoint(request, priced)
    return priced


def price_for_candidates(request: OrderRequest, model: Model) -> PricedRequest:
    """Check a request for candidate providers, and compute its units.

    The input may be incomplete. Raises Refused, which names the wrong field.
    """
    if not model.svc.enabled:
        raise Refused(f"{model.id} is disabled and accepts no orders: choose another model", "model")
    if request.provider is not None and not 0 < request.provider < 2**32:
        raise Refused("provider must be a provider's id from 1 to 4294967295", "provider")
    input_body = model_input(request.input)
    unlisted = check_parameters(_params_schema(model), input_body)
    modality = modality_of(request.endpoint or model.svc.endpoint, input_body)
    return PricedRequest(
        model=model,
        input=input_body,
        modality=modality,
        units=units_of(modality, input_body, units_out=request.units_out),
        sla_secs=window_seconds(request.window),
        rates=read_rates(request.rate_in, request.rate_out),
        provider=request.provider,
        custom_id=read_custom_id(request.custom_id),
        unlisted_parameters=unlisted,
    )


def _require_matching_endpoint(request: OrderRequest, priced: PricedRequest) -> None:
    """Raise Refused if the model's route cannot serve this request."""
    model, modality, unlisted = priced.model, priced.modality, priced.unlisted_parameters
    served = model.svc.endpoint
    if served is None:
        return
    if request.endpoint == EMBEDDINGS_ENDPOINT != served:
        raise Refused(f"{model.id} does not make embeddings: its endpoint is {served}", "endpoint")
    if served == EMBEDDINGS_ENDPOINT and "input" not in priced.input:
        raise Refused(f"{model.id} makes embeddings: pass the texts as input", "input")
    if served == IMAGES_ENDPOINT and modality != "image" and request.units_out is None:
        example = '{"prompt": "a cat", "num_images": 1}'
        raise Refused(f"{model.id} makes images: set num_images, width or resolution, as in {example}", "input")
    if served in TEXT_ENDPOINTS and modality in ("image", "video") and unlisted:
        raise Refused(f"{model.id} returns text, not {modality}: remove {', '.join(unlisted)}", "input")


def _params_schema(model: Model) -> Mapping[str, object] | None:
    return model.svc.params_schema


def candidates_request_body(priced: PricedRequest) -> dict[str, object]:
    """Return the body of a request for candidates."""
    body: dict[str, object] = {
        "model_id": priced.model.svc.model_id,
        "sla_secs": priced.sla_secs,
        "units_in": priced.units.units_in,
        "units_out": priced.units.units_out,
    }
    return body if priced.provider is None else body | {"designated": priced.provider}
