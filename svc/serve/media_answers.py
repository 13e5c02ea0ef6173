"""Settled jobs and what they cost, and the answers that are no text: embeddings and images, in the form asked for."""

import struct
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import quotes
from common.quotes import FeeTerms
from common.scalars import base64_of, read_base64
from svc.serve.problems import Problem
from svc.serve.requests import Wanted
from svc.serve.usage import usage_of_response

Json = dict[str, Any]

NOT_UNDERSTOOD: Final = "result_not_understood"
_LARGEST_BASE64: Final = 1 << 28


@attrs.frozen(slots=True)
class Bought:
    """One settled job: its output, and its cost in base units. If the settle is in no block yet, `cost` is what it will
    be, and `rests_on` says how far the settle is. `terms` are the market's charges on it."""

    job_id: str
    provider: int
    amount: int
    cost: int
    terms: FeeTerms
    created: int
    output: Any = attrs.field(repr=False)
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    rests_on: str | None = None

    def told(self) -> Json:
        standing = {} if self.rests_on is None else {"provisional": True, "rests_on": self.rests_on}
        return {
            "job_id": self.job_id,
            "provider": self.provider,
            "amount": str(self.amount),
            "cost": str(self.cost),
            **cost_parts(self.cost, self.terms),
            **standing,
        }

    def headers(self) -> dict[str, str]:
        known = {name: value for name, value in self.told().items() if not isinstance(value, dict)}
        texts = {name: "true" if value is True else str(value) for name, value in known.items()}
        return {f"x-svc-{name.replace('_', '-')}": text for name, text in texts.items()}


def cost_parts(cost: int, terms: FeeTerms) -> Json:
    """Return `cost_parts` of what a settled job cost."""
    parts = quotes.parts_of_cost(cost, terms)
    return {} if parts is None else {"cost_parts": {name: str(part) for name, part in attrs.asdict(parts).items()}}


def not_understood(bought: Bought, what: str) -> Problem:
    message = f"the provider's result holds {what}; svc result {bought.job_id} shows what it holds"
    return Problem(502, message, type="server_error", code=NOT_UNDERSTOOD, job_id=bought.job_id)


def embeddings(wanted: Wanted, bought: Bought) -> Json:
    output = bought.output
    rows = output.get("data") if isinstance(output, dict) else output
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        raise not_understood(bought, "no embeddings")
    data = []
    for at, row in enumerate(rows):
        numbers = _numbers(row["embedding"], bought)
        packed = base64_of(struct.pack(f"<{len(numbers)}f", *numbers)) if wanted.form.as_base64 else numbers
        data.append({"object": "embedding", "index": row.get("index", at), "embedding": packed})
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None) or {}
    asked = usage_of_response(usage)["input_tokens"]
    counted = {"prompt_tokens": asked, "total_tokens": usage.get("total_tokens", asked)}
    return {"object": "list", "data": data, "model": wanted.name, "usage": counted, "svc": bought.told()}


def _numbers(embedding: object, bought: Bought) -> list[float]:
    if isinstance(embedding, str):
        raw = read_base64(embedding, _LARGEST_BASE64, "embedding")
        return [*struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4])]
    if isinstance(embedding, list) and all(isinstance(number, int | float) for number in embedding):
        return embedding
    raise not_understood(bought, "an embedding that is no list of numbers")


def images(wanted: Wanted, bought: Bought) -> Json:
    output = bought.output
    rows = output.get("data", output) if isinstance(output, dict) else output
    images = [_image(row) for row in (rows if isinstance(rows, list) else [rows])]
    if not images or not all(image is not None for image in images):
        raise not_understood(bought, "no images")
    data: list[Json] = []
    for image in images:
        if image is not None:
            content, kind, more = image
            address = {"url": f"data:{kind};base64,{content}"} if wanted.form.as_address else {"b64_json": content}
            data.append(address | more)
    made: Json = {"created": bought.created, "data": data, "svc": bought.told()}
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None)
    if usage:
        made["usage"] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, **usage}
    return made


def _image(row: object) -> tuple[str, str, Json] | None:
    if not isinstance(row, dict):
        return None
    content = row.get("b64_json") or row.get("b64")
    if not isinstance(content, str) or not content:
        return None
    more = {"revised_prompt": row["revised_prompt"]} if isinstance(row.get("revised_prompt"), str) else {}
    return content, str(row.get("media_type", "image/png")), more
