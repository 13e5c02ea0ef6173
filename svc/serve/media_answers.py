"""Answers of embeddings and images, and the settled job behind every answer."""

import struct
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import quotes
from common.quotes import FeeTerms
from common.scalars import base64_of, read_base64
from svc.serve.problems import Problem
from svc.serve.requests import AnswerRequest
from svc.serve.usage import usage_of_response

Json = dict[str, Any]

NOT_UNDERSTOOD: Final = "result_not_understood"
_MAX_BASE64_LENGTH: Final = 1 << 28


@attrs.frozen(slots=True)
class Bought:
    """Result of one job, with amounts in base units and the market's charges in `terms`.

    While the settle is in no block yet, `cost` is expected, and `rests_on` says how far the settle is.
    """

    job_id: str
    provider: int
    amount: int
    cost: int
    terms: FeeTerms
    created: int
    output: Any = attrs.field(repr=False)
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    rests_on: str | None = None

    def to_json(self) -> Json:
        provisional = {} if self.rests_on is None else {"provisional": True, "rests_on": self.rests_on}
        return {
            "job_id": self.job_id,
            "provider": self.provider,
            "amount": str(self.amount),
            "cost": str(self.cost),
            **cost_parts(self.cost, self.terms),
            **provisional,
        }

    def headers(self) -> dict[str, str]:
        members = {name: value for name, value in self.to_json().items() if not isinstance(value, dict)}
        texts = {name: "true" if value is True else str(value) for name, value in members.items()}
        return {f"x-svc-{name.replace('_', '-')}": text for name, text in texts.items()}


def cost_parts(cost: int, terms: FeeTerms) -> Json:
    """Return the member `cost_parts` of a settled job's cost."""
    parts = quotes.parts_of_cost(cost, terms)
    return {} if parts is None else {"cost_parts": {name: str(part) for name, part in attrs.asdict(parts).items()}}


def not_understood(bought: Bought, what: str) -> Problem:
    message = f"the provider's result has {what}; see it with: svc result {bought.job_id}"
    return Problem(502, message, type="server_error", code=NOT_UNDERSTOOD, job_id=bought.job_id)


def embeddings(requested: AnswerRequest, bought: Bought) -> Json:
    output = bought.output
    items = output.get("data") if isinstance(output, dict) else output
    if not isinstance(items, list) or not all(isinstance(item, dict) and "embedding" in item for item in items):
        raise not_understood(bought, "no embeddings")
    data = []
    for at, item in enumerate(items):
        numbers = _numbers(item["embedding"], bought)
        packed = base64_of(struct.pack(f"<{len(numbers)}f", *numbers)) if requested.form.base64_embeddings else numbers
        data.append({"object": "embedding", "index": item.get("index", at), "embedding": packed})
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None) or {}
    input_tokens = usage_of_response(usage)["input_tokens"]
    counted = {"prompt_tokens": input_tokens, "total_tokens": usage.get("total_tokens", input_tokens)}
    return {"object": "list", "data": data, "model": requested.name, "usage": counted, "svc": bought.to_json()}


def _numbers(embedding: object, bought: Bought) -> list[float]:
    if isinstance(embedding, str):
        raw = read_base64(embedding, _MAX_BASE64_LENGTH, "embedding")
        return [*struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4])]
    if isinstance(embedding, list) and all(isinstance(number, int | float) for number in embedding):
        return embedding
    raise not_understood(bought, "an embedding that is not a list of numbers")


def images(requested: AnswerRequest, bought: Bought) -> Json:
    output = bought.output
    items = output.get("data", output) if isinstance(output, dict) else output
    images = [_image(item) for item in (items if isinstance(items, list) else [items])]
    if not images or not all(image is not None for image in images):
        raise not_understood(bought, "no images")
    data: list[Json] = []
    for image in images:
        if image is not None:
            content, kind, extra = image
            address = {"url": f"data:{kind};base64,{content}"} if requested.form.image_urls else {"b64_json": content}
            data.append(address | extra)
    answer: Json = {"created": bought.created, "data": data, "svc": bought.to_json()}
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None)
    if usage:
        answer["usage"] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, **usage}
    return answer


def _image(item: object) -> tuple[str, str, Json] | None:
    if not isinstance(item, dict):
        return None
    content = item.get("b64_json") or item.get("b64")
    if not isinstance(content, str) or not content:
        return None
    extra = {"revised_prompt": item["revised_prompt"]} if isinstance(item.get("revised_prompt"), str) else {}
    return content, str(item.get("media_type", "image/png")), extra
