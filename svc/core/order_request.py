"""Order request checked against the model: its input, shape and units."""

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
    """`endpoint` matters for embeddings alone (`/v1/embeddings`); without it, what the model publishes."""

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
class Shaped:
    """A request that the model can take, as far as can be told here. `rates` is None for the market's."""

    model: Model
    input: dict[str, object]
    modality: Modality
    units: Units
    sla_secs: int
    rates: Rates | None
    provider: int | None
    custom_id: str | None
    unlisted: tuple[str, ...]


def shape(request: OrderRequest, model: Model) -> Shaped:
    """Check a request that is to be bought, and price it. Raises Refused, naming the field at fault."""
    shaped = shape_probe(request, model)
    _require_served(request, shaped)
    return shaped


def shape_probe(request: OrderRequest, model: Model) -> Shaped:
    """Price a request that only asks for candidates: its input may still be incomplete. Raises Refused."""
    if not model.svc.enabled:
        raise Refused(f"{model.id} takes no new orders", "model")
    if request.provider is not None and not 0 < request.provider < 2**32:
        raise Refused("provider must be a provider's id", "provider")
    given = model_input(request.input)
    unlisted = check_parameters(_schema(model), given)
    modality = modality_of(request.endpoint or model.svc.endpoint, given)
    return Shaped(
        model=model,
        input=given,
        modality=modality,
        units=units_of(modality, given, units_out=request.units_out),
        sla_secs=window_seconds(request.window),
        rates=read_rates(request.rate_in, request.rate_out),
        provider=request.provider,
        custom_id=read_custom_id(request.custom_id),
        unlisted=unlisted,
    )


def _require_served(request: OrderRequest, shaped: Shaped) -> None:
    """Raise Refused if the route that the model publishes cannot serve this request."""
    model, modality, unlisted = shaped.model, shaped.modality, shaped.unlisted
    serves = model.svc.endpoint
    if serves is None:
        return
    if request.endpoint == EMBEDDINGS_ENDPOINT != serves:
        raise Refused(f"{model.id} makes no embeddings: it serves {serves}", "endpoint")
    if serves == EMBEDDINGS_ENDPOINT and "input" not in shaped.input:
        raise Refused(f"{model.id} makes embeddings of its input: name the texts as input", "input")
    if serves == IMAGES_ENDPOINT and modality != "image" and request.units_out is None:
        example = '{"prompt": "a cat", "num_images": 1}'
        raise Refused(f"{model.id} makes images: name num_images, width or resolution, as in {example}", "input")
    if serves in TEXT_ENDPOINTS and modality in ("image", "video") and unlisted:
        raise Refused(f"{model.id} answers with text and makes no {modality}: leave out {', '.join(unlisted)}", "input")


def _schema(model: Model) -> Mapping[str, object] | None:
    return model.svc.params_schema


def probe_body(shaped: Shaped) -> dict[str, object]:
    """The unsigned question to the market."""
    body: dict[str, object] = {
        "model_id": shaped.model.svc.model_id,
        "sla_secs": shaped.sla_secs,
        "units_in": shaped.units.units_in,
        "units_out": shaped.units.units_out,
    }
    return body if shaped.provider is None else body | {"designated": shaped.provider}
