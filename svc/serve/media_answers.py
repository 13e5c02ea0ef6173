"""Build answers of embeddings and images. `BoughtAnswer` is the paid result behind every answer."""

import struct
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import quotes
from common.quotes import FeeTerms
from common.scalars import base64_of, read_base64
from svc.serve.problems import Problem
from svc.serve.request_ids import job_id_members, split_tab_request_id
from svc.serve.requests import AnswerRequest
from svc.serve.usage import to_response_usage

JsonObject = dict[str, Any]

NOT_UNDERSTOOD_CODE: Final = "result_not_understood"
_MAX_BASE64_LENGTH: Final = 1 << 28


@attrs.frozen(slots=True)
class BoughtAnswer:
    """Paid result of one job or of one request in a tab. For a request in a tab, `job_id` is JOB/NUMBER.

    Amounts are in base units, with the market's charges in `terms`. Until the chain has settled the job, `cost` is the
    expected cost, and `rests_on` states the progress of the settle.
    """

    job_id: str
    provider: int
    amount: int
    cost: int
    terms: FeeTerms
    created_at: int
    output: Any = attrs.field(repr=False)
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    rests_on: str | None = None

    def to_json(self) -> JsonObject:
        provisional = {} if self.rests_on is None else {"provisional": True, "rests_on": self.rests_on}
        return {
            **job_id_members(self.job_id),
            "provider": self.provider,
            "amount": str(self.amount),
            "cost": str(self.cost),
            **cost_parts_json(self.cost, self.terms),
            **provisional,
        }

    def headers(self) -> dict[str, str]:
        members = {name: value for name, value in self.to_json().items() if not isinstance(value, dict)}
        texts = {name: "true" if value is True else str(value) for name, value in members.items()}
        return {f"x-svc-{name.replace('_', '-')}": text for name, text in texts.items()}


def cost_parts_json(cost: int, terms: FeeTerms) -> JsonObject:
    """Return the JSON member `cost_parts` for a cost, or an empty object if the parts cannot be computed."""
    parts = quotes.split_cost(cost, terms)
    return {} if parts is None else {"cost_parts": {name: str(part) for name, part in attrs.asdict(parts).items()}}


def not_understood_problem(bought: BoughtAnswer, defect: str) -> Problem:
    job_id, number = split_tab_request_id(bought.job_id)
    place = "the result" if number is None else f"request {number} in the tab's transcript, once the tab is settled,"
    message = f"the provider's result has {defect}; see {place} with: svc result {job_id}"
    return Problem(502, message, type="server_error", code=NOT_UNDERSTOOD_CODE, job_id=bought.job_id)


def build_embeddings(requested: AnswerRequest, bought: BoughtAnswer) -> JsonObject:
    output = bought.output
    items = output.get("data") if isinstance(output, dict) else output
    if not isinstance(items, list) or not all(isinstance(item, dict) and "embedding" in item for item in items):
        raise not_understood_problem(bought, "no embeddings")
    data = []
    for at, item in enumerate(items):
        numbers = _read_numbers(item["embedding"], bought)
        packed = base64_of(struct.pack(f"<{len(numbers)}f", *numbers)) if requested.form.base64_embeddings else numbers
        data.append({"object": "embedding", "index": item.get("index", at), "embedding": packed})
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None) or {}
    input_tokens = to_response_usage(usage)["input_tokens"]
    counted = {"prompt_tokens": input_tokens, "total_tokens": usage.get("total_tokens", input_tokens)}
    return {"object": "list", "data": data, "model": requested.model_name, "usage": counted, "svc": bought.to_json()}


def _read_numbers(embedding: object, bought: BoughtAnswer) -> list[float]:
    if isinstance(embedding, str):
        raw = read_base64(embedding, _MAX_BASE64_LENGTH, "embedding")
        return [*struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4])]
    if isinstance(embedding, list) and all(isinstance(number, int | float) for number in embedding):
        return embedding
    raise not_understood_problem(bought, "an embedding that is not a list of numbers")


def build_images(requested: AnswerRequest, bought: BoughtAnswer) -> JsonObject:
    output = bought.output
    items = output.get("data", output) if isinstance(output, dict) else output
    images = [_read_image(item) for item in (items if isinstance(items, list) else [items])]
    if not images or not all(image is not None for image in images):
        raise not_understood_problem(bought, "no images")
    data: list[JsonObject] = []
    for image in images:
        if image is not None:
            content, kind, extra = image
            address = {"url": f"data:{kind};base64,{content}"} if requested.form.image_urls else {"b64_json": content}
            data.append(address | extra)
    answer: JsonObject = {"created": bought.created_at, "data": data, "svc": bought.to_json()}
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None)
    if usage:
        answer["usage"] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, **usage}
    return answer


def _read_image(item: object) -> tuple[str, str, JsonObject] | None:
    if not isinstance(item, dict):
        return None
    content = item.get("b64_json") or item.get("b64")
    if not isinstance(content, str) or not content:
        return None
    extra = {"revised_prompt": item["revised_prompt"]} if isinstance(item.get("revised_prompt"), str) else {}
    return content, str(item.get("media_type", "image/png")), extra
