"""Requests of OpenAI's routes, read into what is ordered: the market's model, its input, and how the answer is wanted.

What says how an answer travels, what is kept of it or who asks is not part of an order: it is taken and not sealed.
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
from svc.serve.problems import Problem, invalid, no_such_model, unsupported
from svc.serve.settings import Rule

Route = Literal["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/images/generations"]
Json = dict[str, Any]

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = EMBEDDINGS_ENDPOINT
IMAGES: Final = "/v1/images/generations"
ROUTES: Final[tuple[Route, ...]] = (CHAT, RESPONSES, EMBEDDINGS, IMAGES)
LONGEST_BODY: Final = limits.INLINE_BYTES * 4 // 3

_NOT_SEALED: Final = frozenset(
    {
        *("model", "stream", "stream_options", "store", "metadata", "user", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
_KEPT: Final = ("previous_response_id", "conversation", "prompt")
_SCHEMAS: Final = frozenset({"parameters", "schema"})  # what they hold is said of data, and is none
_ADDRESSES: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_DEFAULT_CAP: Final = 4096
_SIZE: Final = re.compile(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})", re.ASCII)
_SQUARE: Final = 1024
_PASSED_IMAGES: Final = frozenset(
    {"seed", "steps", "negative_prompt", "resolution", "aspect_ratio", "reference_images"}
)


@attrs.frozen(slots=True)
class AnswerForm:
    """How the caller wants an answer. `as_base64`: numbers of embeddings; `as_address`: images, as data: addresses."""

    stream: bool = False
    with_usage: bool = False
    as_base64: bool = False
    as_address: bool = False


@attrs.frozen(slots=True)
class Wanted:
    """One answer that is to be bought. `name` is the model as the caller calls it; `asked` what was asked, in the words
    of the route."""

    route: Route
    name: str
    model: Model
    rule: Rule
    input: Json = attrs.field(repr=False)
    form: AnswerForm
    units_out: int | None = None
    asked: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

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
        raise invalid("model must name a model: GET /v1/models lists them", "model")
    return name


def read_request(route: Route, body: Json, model: Model, rule: Rule) -> Wanted:
    """Raises Problem for what this model cannot be asked."""
    for name in _KEPT:
        if route != IMAGES and body.get(name) is not None:
            raise unsupported(name, "names what only OpenAI keeps: send what it holds instead")
    if route != IMAGES and body.get("background"):
        raise unsupported("background", "must be false: svc batch, or POST /v1/batches, is for what nobody waits for")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise invalid("stream must be true or false", "stream")
    given = {name: value for name, value in body.items() if name not in _NOT_SEALED and value is not None}
    if route != IMAGES:
        given.pop("background", None)
    _require_inside(given, "")
    listed = frozenset((model.svc.params_schema or {}).get("properties", {}))
    serves = model.svc.endpoint or route
    name = model_name(body)
    match route:
        case "/v1/embeddings":
            _require_same(route, serves, name)
            return _embeddings(name, model, rule, given)
        case "/v1/images/generations":
            _require_same(route, serves, name)
            if stream:
                raise unsupported("stream", "must be false: images come whole")
            return _images(name, model, rule, given, listed)
    if serves not in {CHAT, RESPONSES}:
        raise _other_route(route, serves, name)
    options = body.get("stream_options")
    form = AnswerForm(stream, isinstance(options, dict) and bool(options.get("include_usage")))
    return _text(route, serves, name, model, rule, given, form, listed)


def _text(  # noqa: PLR0917 - all of one request
    route: Route,
    serves: str,
    name: str,
    model: Model,
    rule: Rule,
    given: Json,
    form: AnswerForm,
    listed: frozenset[str],
) -> Wanted:
    if route == serves:
        made = given
        if route == CHAT and not isinstance(given.get("messages"), list):
            raise invalid("messages must be a list of messages", "messages")
        if route == RESPONSES and "input" not in given:
            raise invalid("input must be a text or a list of items", "input")
    else:
        made = responses_input(given, listed) if route == CHAT else chat_input(given, listed)
    caps = []
    for cap in OUTPUT_CAPS:
        if isinstance(made.get(cap), int):
            if type(made[cap]) is not int or made[cap] < 0:
                raise invalid(f"{cap} must be a whole number, 0 or more", cap)
            caps.append(made[cap])
    if not caps and rule.max_output_tokens is not None:
        made = made | {"max_output_tokens" if serves == RESPONSES else "max_completion_tokens": rule.max_output_tokens}
        caps = [rule.max_output_tokens]
    answers = made.get("n", 1)
    if type(answers) is not int or not 1 <= answers <= 128:
        raise invalid("n must be a whole number from 1 to 128", "n")
    units = None if answers == 1 else answers * (caps[0] if caps else _DEFAULT_CAP)
    return Wanted(route, name, model, rule, made, form, units, given)


def _embeddings(name: str, model: Model, rule: Rule, given: Json) -> Wanted:
    encoding = given.pop("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise invalid("encoding_format must be float or base64", "encoding_format")
    if "input" not in given:
        raise invalid("input must be a text or a list of texts", "input")
    return Wanted(EMBEDDINGS, name, model, rule, given, AnswerForm(as_base64=encoding == "base64"))


def _images(name: str, model: Model, rule: Rule, given: Json, listed: frozenset[str]) -> Wanted:
    if not isinstance(given.get("prompt"), str):
        raise invalid("prompt must be a text", "prompt")
    made: Json = {"prompt": given["prompt"], "num_images": given.get("n", 1)}
    size = given.get("size", "auto")
    if size != "auto":
        found = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if found is None:
            raise invalid("size must be auto or <width>x<height>", "size")
        made |= {"width": int(found[1]), "height": int(found[2])}
    elif "resolution" not in given:
        made |= {"width": _SQUARE, "height": _SQUARE}
    wanted = given.get("response_format", "b64_json")
    if wanted not in ("b64_json", "url"):
        raise invalid("response_format must be b64_json or url", "response_format")
    for key, value in given.items():
        if key in {"prompt", "n", "size", "response_format", "moderation"} or (
            value == "auto" and key not in _PASSED_IMAGES
        ):
            continue
        if key not in listed and key not in _PASSED_IMAGES:
            raise unsupported(key, "is nothing that this model says it knows")
        made[key] = value
    return Wanted(IMAGES, name, model, rule, made, AnswerForm(as_address=wanted == "url"))


def _require_same(route: str, serves: str, name: str) -> None:
    if serves != route:
        raise _other_route(route, serves, name)


def _other_route(route: str, serves: str, name: str) -> Problem:
    return no_such_model(name, f"takes {serves}, and not {route}")


def _require_inside(value: object, place: str) -> None:
    """Raises Problem for an address or an id that only its owner's server could follow: providers fetch nothing."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            _require_inside(item, f"{place}[{at}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{place}.{key}" if place else str(key)
            if key in _ADDRESSES and isinstance(inner, str) and not inner.startswith("data:"):
                raise unsupported(here, "must be a data: address: providers fetch nothing")
            if key == "file_id" and isinstance(inner, str):
                raise unsupported(here, "names a file that no provider can read: send its data")
            if key == "type" and inner == "item_reference":
                raise unsupported(here, "must not be item_reference: send the item itself")
            if key not in _SCHEMAS:
                _require_inside(inner, here)


def listed_model(model: Model, name: str) -> Mapping[str, Any]:
    """A model as GET /v1/models shows it under a name."""
    details: Json = {"model": model.id, "model_id": str(model.svc.model_id), "enabled": model.svc.enabled}
    if model.svc.endpoint is not None:
        details["endpoint"] = model.svc.endpoint
    return {"id": name, "object": "model", "created": 0, "owned_by": model.owned_by, "svc": details}
