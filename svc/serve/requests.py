"""Read requests of OpenAI's routes: the market's model, its input and the form of the answer.

Parameters that only concern delivery, storage or the caller are accepted, but are not part of the sealed order.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from common.api import limits
from common.pricing.model_input import EMBEDDINGS_ENDPOINT, OUTPUT_CAPS
from svc.core.order_request import OrderRequest
from svc.records import Model
from svc.serve.as_chat import chat_input
from svc.serve.as_responses import responses_input
from svc.serve.problems import Problem, invalid, model_not_found, unsupported
from svc.serve.settings import BuyingRule

Route = Literal["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/images/generations"]
Json = dict[str, Any]

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = EMBEDDINGS_ENDPOINT
IMAGES: Final = "/v1/images/generations"
ROUTES: Final[tuple[Route, ...]] = (CHAT, RESPONSES, EMBEDDINGS, IMAGES)
MAX_BODY_BYTES: Final = limits.INLINE_BYTES * 4 // 3

_UNSEALED_PARAMETERS: Final = frozenset(
    {
        *("model", "stream", "stream_options", "store", "metadata", "user", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
_STORED_BY_OPENAI: Final = ("previous_response_id", "conversation", "prompt")
_SCHEMA_KEYS: Final = frozenset({"parameters", "schema"})  # JSON Schema describes data and contains none
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
    with_usage: bool = False
    base64_embeddings: bool = False
    image_urls: bool = False


@attrs.frozen(slots=True)
class AnswerRequest:
    """Answer that a client requests.

    `name` is the client's name for the model. `parameters` holds the request's parameters under the route's names.
    """

    route: Route
    name: str
    model: Model
    rule: BuyingRule
    input: Json = attrs.field(repr=False)
    form: AnswerForm
    units_out: int | None = None
    parameters: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    def order(self) -> OrderRequest:
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


def model_name(body: object) -> str:
    name = body.get("model") if isinstance(body, dict) else None
    if not isinstance(name, str) or not name:
        raise invalid("model must name a model: see GET /v1/models", "model")
    return name


def read_request(route: Route, body: Json, model: Model, rule: BuyingRule) -> AnswerRequest:
    """Read the request of a route. Raises Problem for anything this model does not support."""
    for name in _STORED_BY_OPENAI:
        if route != IMAGES and body.get(name) is not None:
            raise unsupported(name, "refers to data stored at OpenAI: send the content instead")
    if route != IMAGES and body.get("background"):
        raise unsupported("background", "must be false: for background work use svc batch or POST /v1/batches")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise invalid("stream must be true or false", "stream")
    given = {name: value for name, value in body.items() if name not in _UNSEALED_PARAMETERS and value is not None}
    if route != IMAGES:
        given.pop("background", None)
    _require_inline_data(given, "")
    listed = frozenset((model.svc.params_schema or {}).get("properties", {}))
    served_route = model.svc.endpoint or route
    name = model_name(body)
    match route:
        case "/v1/embeddings":
            _require_route(route, served_route, name)
            return _embeddings(name, model, rule, given)
        case "/v1/images/generations":
            _require_route(route, served_route, name)
            if stream:
                raise unsupported("stream", "must be false: images are not streamed")
            return _images(name, model, rule, given, listed)
    if served_route not in {CHAT, RESPONSES}:
        raise _wrong_route(route, served_route, name)
    options = body.get("stream_options")
    form = AnswerForm(stream, isinstance(options, dict) and bool(options.get("include_usage")))
    return _text(route, served_route, name, model, rule, given, form, listed)


def _text(  # noqa: PLR0917 - parts of one request
    route: Route,
    served_route: str,
    name: str,
    model: Model,
    rule: BuyingRule,
    given: Json,
    form: AnswerForm,
    listed: frozenset[str],
) -> AnswerRequest:
    if route == served_route:
        input_body = given
        if route == CHAT and not isinstance(given.get("messages"), list):
            raise invalid("messages must be a list of messages", "messages")
        if route == RESPONSES and "input" not in given:
            raise invalid("input must be a text or a list of items", "input")
    else:
        input_body = responses_input(given, listed) if route == CHAT else chat_input(given, listed)
    caps = []
    for cap in OUTPUT_CAPS:
        if isinstance(input_body.get(cap), int):
            if type(input_body[cap]) is not int or input_body[cap] < 0:
                raise invalid(f"{cap} must be a whole number, 0 or more", cap)
            caps.append(input_body[cap])
    if not caps and rule.max_output_tokens is not None:
        input_body = input_body | {
            "max_output_tokens" if served_route == RESPONSES else "max_completion_tokens": rule.max_output_tokens
        }
        caps = [rule.max_output_tokens]
    answer_count = input_body.get("n", 1)
    if type(answer_count) is not int or not 1 <= answer_count <= 128:
        raise invalid("n must be a whole number from 1 to 128", "n")
    total_units = None if answer_count == 1 else answer_count * (caps[0] if caps else _DEFAULT_OUTPUT_TOKENS)
    return AnswerRequest(route, name, model, rule, input_body, form, total_units, given)


def _embeddings(name: str, model: Model, rule: BuyingRule, given: Json) -> AnswerRequest:
    encoding = given.pop("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise invalid("encoding_format must be float or base64", "encoding_format")
    if "input" not in given:
        raise invalid("input must be a text or a list of texts", "input")
    return AnswerRequest(EMBEDDINGS, name, model, rule, given, AnswerForm(base64_embeddings=encoding == "base64"))


def _images(name: str, model: Model, rule: BuyingRule, given: Json, listed: frozenset[str]) -> AnswerRequest:
    if not isinstance(given.get("prompt"), str):
        raise invalid("prompt must be a text", "prompt")
    input_body: Json = {"prompt": given["prompt"], "num_images": given.get("n", 1)}
    size = given.get("size", "auto")
    if size != "auto":
        found = _SIZE_PATTERN.fullmatch(size) if isinstance(size, str) else None
        if found is None:
            raise invalid("size must be auto or <width>x<height>", "size")
        input_body |= {"width": int(found[1]), "height": int(found[2])}
    elif "resolution" not in given:
        input_body |= {"width": _DEFAULT_SIDE_PX, "height": _DEFAULT_SIDE_PX}
    response_format = given.get("response_format", "b64_json")
    if response_format not in ("b64_json", "url"):
        raise invalid("response_format must be b64_json or url", "response_format")
    for key, value in given.items():
        if key in {"prompt", "n", "size", "response_format", "moderation"} or (
            value == "auto" and key not in _PASSED_IMAGE_PARAMETERS
        ):
            continue
        if key not in listed and key not in _PASSED_IMAGE_PARAMETERS:
            raise unsupported(key, "is not a parameter of this model")
        input_body[key] = value
    return AnswerRequest(IMAGES, name, model, rule, input_body, AnswerForm(image_urls=response_format == "url"))


def _require_route(route: str, served_route: str, name: str) -> None:
    if served_route != route:
        raise _wrong_route(route, served_route, name)


def _wrong_route(route: str, served_route: str, name: str) -> Problem:
    return model_not_found(name, f"is served by {served_route}, not {route}")


def _require_inline_data(value: object, place: str) -> None:
    """Raises Problem for a URL or an id. Providers fetch nothing, so data must be in the request."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            _require_inline_data(item, f"{place}[{at}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{place}.{key}" if place else str(key)
            if key in _URL_KEYS and isinstance(inner, str) and not inner.startswith("data:"):
                raise unsupported(here, "must be a data: URL: providers fetch nothing")
            if key == "file_id" and isinstance(inner, str):
                raise unsupported(here, "refers to a file that providers cannot read: send its data")
            if key == "type" and inner == "item_reference":
                raise unsupported(here, "must not be item_reference: send the item itself")
            if key not in _SCHEMA_KEYS:
                _require_inline_data(inner, here)


def listed_model(model: Model, name: str) -> Mapping[str, Any]:
    """Return the model as GET /v1/models shows it."""
    details: Json = {"model": model.id, "model_id": str(model.svc.model_id), "enabled": model.svc.enabled}
    if model.svc.endpoint is not None:
        details["endpoint"] = model.svc.endpoint
    return {"id": name, "object": "model", "created": 0, "owned_by": model.owned_by, "svc": details}
