"""Read requests of OpenAI's routes: the model in the market, the model's input and the form of the answer.

Parameters that only concern delivery, storage or the caller are accepted, but are not part of the sealed order.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from common.api import limits
from common.pricing.model_input import EMBEDDINGS_ENDPOINT, OUTPUT_CAP_PARAMS
from svc.core.order_request import OrderRequest
from svc.records import Model
from svc.serve.as_chat import to_chat_input
from svc.serve.as_responses import to_responses_input
from svc.serve.problems import Problem, invalid_request, model_not_found, unsupported_parameter
from svc.serve.settings import BuyingRule

Route = Literal["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/images/generations"]
JsonObject = dict[str, Any]

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = EMBEDDINGS_ENDPOINT
IMAGES: Final = "/v1/images/generations"
ROUTES: Final[tuple[Route, ...]] = (CHAT, RESPONSES, EMBEDDINGS, IMAGES)
MAX_BODY_BYTES: Final = limits.MAX_INLINE_BYTES * 4 // 3

_UNSEALED_PARAMETERS: Final = frozenset(
    {
        *("model", "stream", "stream_options", "store", "metadata", "user", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
_STORED_DATA_PARAMETERS: Final = ("previous_response_id", "conversation", "prompt")
_SCHEMA_KEYS: Final = frozenset({"parameters", "schema"})  # values are JSON Schema, which contains no data
_URL_KEYS: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_DEFAULT_OUTPUT_TOKENS: Final = 4096
_SIZE_PATTERN: Final = re.compile(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})", re.ASCII)
_DEFAULT_SIDE_PX: Final = 1024
_PASSED_IMAGE_PARAMETERS: Final = frozenset(
    {"seed", "steps", "negative_prompt", "resolution", "aspect_ratio", "reference_images"}
)


@attrs.frozen(slots=True)
class AnswerForm:
    """Form in which the client wants the answer.

    `base64_embeddings`: embeddings as base64. `image_urls`: images as `data:` URLs.
    """

    stream: bool = False
    include_usage: bool = False
    base64_embeddings: bool = False
    image_urls: bool = False


@attrs.frozen(slots=True)
class AnswerRequest:
    """Validated request of a client for an answer.

    `model_name` is the client's name for the model. `parameters` are the request's parameters under the route's names.
    `max_amount` is the client's limit, in addition to the server's.
    """

    route: Route
    model_name: str
    model: Model
    rule: BuyingRule
    input: JsonObject = attrs.field(repr=False)
    form: AnswerForm
    units_out: int | None = None
    parameters: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    max_amount: int | None = None

    def to_order_request(self) -> OrderRequest:
        rule, endpoint = self.rule, EMBEDDINGS if self.route == EMBEDDINGS else self.model.svc.endpoint
        return OrderRequest(
            self.model.id,
            self.input,
            rule.window,
            rate_in=rule.rate_in,
            rate_out=rule.rate_out,
            units_out=self.units_out,
            endpoint=endpoint,
        )


def read_model_name(body: object) -> str:
    name = body.get("model") if isinstance(body, dict) else None
    if not isinstance(name, str) or not name:
        raise invalid_request("model must name a model: see GET /v1/models", "model")
    return name


def read_request(route: Route, body: JsonObject, model: Model, rule: BuyingRule) -> AnswerRequest:
    """Read the request of a route. Raises Problem for anything this model does not support."""
    for name in _STORED_DATA_PARAMETERS:
        if route != IMAGES and body.get(name) is not None:
            raise unsupported_parameter(name, "refers to data stored at OpenAI: send the content instead")
    if route != IMAGES and body.get("background"):
        raise unsupported_parameter(
            "background", "must be false: for background work use svc batch or POST /v1/batches"
        )
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise invalid_request("stream must be true or false", "stream")
    parameters = {name: value for name, value in body.items() if name not in _UNSEALED_PARAMETERS and value is not None}
    if route != IMAGES:
        parameters.pop("background", None)
    _require_inline_data(parameters, "")
    schema_parameters = frozenset((model.svc.params_schema or {}).get("properties", {}))
    served_route = model.svc.endpoint or route
    name = read_model_name(body)
    match route:
        case "/v1/embeddings":
            _require_route(route, served_route, name)
            return _read_embeddings_request(name, model, rule, parameters)
        case "/v1/images/generations":
            _require_route(route, served_route, name)
            if stream:
                raise unsupported_parameter("stream", "must be false: images are not streamed")
            return _read_images_request(name, model, rule, parameters, schema_parameters)
    if served_route not in {CHAT, RESPONSES}:
        raise _wrong_route_problem(route, served_route, name)
    options = body.get("stream_options")
    form = AnswerForm(stream, isinstance(options, dict) and bool(options.get("include_usage")))
    return _read_text_request(route, served_route, name, model, rule, parameters, form, schema_parameters)


def _read_text_request(  # noqa: PLR0917 - parts of one request
    route: Route,
    served_route: str,
    name: str,
    model: Model,
    rule: BuyingRule,
    parameters: JsonObject,
    form: AnswerForm,
    schema_parameters: frozenset[str],
) -> AnswerRequest:
    if route == served_route:
        input_body = parameters
        if route == CHAT and not isinstance(parameters.get("messages"), list):
            raise invalid_request("messages must be a list of messages", "messages")
        if route == RESPONSES and "input" not in parameters:
            raise invalid_request("input must be a text or a list of items", "input")
    else:
        input_body = (
            to_responses_input(parameters, schema_parameters)
            if route == CHAT
            else to_chat_input(parameters, schema_parameters)
        )
    caps = []
    for cap in OUTPUT_CAP_PARAMS:
        if isinstance(input_body.get(cap), int):
            if type(input_body[cap]) is not int or input_body[cap] < 0:
                raise invalid_request(f"{cap} must be a whole number, 0 or more", cap)
            caps.append(input_body[cap])
    if not caps and rule.max_output_tokens is not None:
        input_body = input_body | {
            "max_output_tokens" if served_route == RESPONSES else "max_completion_tokens": rule.max_output_tokens
        }
        caps = [rule.max_output_tokens]
    answer_count = input_body.get("n", 1)
    if type(answer_count) is not int or not 1 <= answer_count <= 128:
        raise invalid_request("n must be a whole number from 1 to 128", "n")
    total_units = None if answer_count == 1 else answer_count * (caps[0] if caps else _DEFAULT_OUTPUT_TOKENS)
    return AnswerRequest(route, name, model, rule, input_body, form, total_units, parameters)


def _read_embeddings_request(name: str, model: Model, rule: BuyingRule, parameters: JsonObject) -> AnswerRequest:
    encoding = parameters.pop("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise invalid_request("encoding_format must be float or base64", "encoding_format")
    if "input" not in parameters:
        raise invalid_request("input must be a text or a list of texts", "input")
    return AnswerRequest(EMBEDDINGS, name, model, rule, parameters, AnswerForm(base64_embeddings=encoding == "base64"))


def _read_images_request(
    name: str, model: Model, rule: BuyingRule, parameters: JsonObject, schema_parameters: frozenset[str]
) -> AnswerRequest:
    if not isinstance(parameters.get("prompt"), str):
        raise invalid_request("prompt must be a text", "prompt")
    input_body: JsonObject = {"prompt": parameters["prompt"], "num_images": parameters.get("n", 1)}
    size = parameters.get("size", "auto")
    if size != "auto":
        found = _SIZE_PATTERN.fullmatch(size) if isinstance(size, str) else None
        if found is None:
            raise invalid_request("size must be auto or <width>x<height>", "size")
        input_body |= {"width": int(found[1]), "height": int(found[2])}
    elif "resolution" not in parameters:
        input_body |= {"width": _DEFAULT_SIDE_PX, "height": _DEFAULT_SIDE_PX}
    response_format = parameters.get("response_format", "b64_json")
    if response_format not in ("b64_json", "url"):
        raise invalid_request("response_format must be b64_json or url", "response_format")
    for key, value in parameters.items():
        if key in {"prompt", "n", "size", "response_format", "moderation"} or (
            value == "auto" and key not in _PASSED_IMAGE_PARAMETERS
        ):
            continue
        if key not in schema_parameters and key not in _PASSED_IMAGE_PARAMETERS:
            raise unsupported_parameter(key, "is not a parameter of this model")
        input_body[key] = value
    return AnswerRequest(IMAGES, name, model, rule, input_body, AnswerForm(image_urls=response_format == "url"))


def _require_route(route: str, served_route: str, name: str) -> None:
    if served_route != route:
        raise _wrong_route_problem(route, served_route, name)


def _wrong_route_problem(route: str, served_route: str, name: str) -> Problem:
    return model_not_found(name, f"is served by {served_route}, not {route}")


def _require_inline_data(value: object, param_path: str) -> None:
    """Raise Problem for a URL or an id in place of data. Providers fetch nothing, so data must be in the request."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            _require_inline_data(item, f"{param_path}[{at}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            inner_path = f"{param_path}.{key}" if param_path else str(key)
            if key in _URL_KEYS and isinstance(inner, str) and not inner.startswith("data:"):
                raise unsupported_parameter(inner_path, "must be a data: URL: providers fetch nothing")
            if key == "file_id" and isinstance(inner, str):
                raise unsupported_parameter(inner_path, "refers to a file that providers cannot read: send its data")
            if key == "type" and inner == "item_reference":
                raise unsupported_parameter(inner_path, "must not be item_reference: send the item itself")
            if key not in _SCHEMA_KEYS:
                _require_inline_data(inner, inner_path)


def model_json(model: Model, name: str) -> Mapping[str, Any]:
    """Return the model as GET /v1/models shows it."""
    details: JsonObject = {"model": model.id, "model_id": str(model.svc.model_id), "enabled": model.svc.enabled}
    if model.svc.endpoint is not None:
        details["endpoint"] = model.svc.endpoint
    return {"id": name, "object": "model", "created": 0, "owned_by": model.owned_by, "svc": details}
