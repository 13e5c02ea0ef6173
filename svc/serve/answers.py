"""Answers in OpenAI's form, made of what a provider gave: chat completions, responses, embeddings, images.

An output is taken by its own shape, since providers of one model may run it behind different servers. A text of no
known shape comes as its JSON, as `svc run` shows it: it is paid for. What was counted and what it cost stand in every
answer, the cost under `svc`.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.scalars import base64_of, read_base64
from common.strict_json import canonical
from svc.serve.as_chat import chat_of_response
from svc.serve.as_responses import response_of_chat, usage_of_chat, usage_of_response
from svc.serve.problems import Problem
from svc.serve.requests import CHAT, EMBEDDINGS, RESPONSES, Wanted

Json = dict[str, Any]

_LARGEST_BASE64: Final = 1 << 28


@attrs.frozen(slots=True)
class Bought:
    """One settled job: what it gave and what it came to, in base units. `cost` is all that was paid."""

    job_id: str
    provider: int
    amount: int
    cost: int
    created: int
    output: Any = attrs.field(repr=False)
    usage: Mapping[str, Any] = attrs.field(factory=dict)

    def told(self) -> Json:
        return {
            "job_id": self.job_id,
            "provider": self.provider,
            "amount": str(self.amount),
            "cost": str(self.cost),
        }

    def headers(self) -> dict[str, str]:
        return {f"x-svc-{name.replace('_', '-')}": str(value) for name, value in self.told().items()}


def answer_of(wanted: Wanted, bought: Bought) -> Json:
    """Raises Problem for an output that is no answer of the route."""
    match wanted.route:
        case "/v1/chat/completions":
            return completion(wanted, bought)
        case "/v1/responses":
            return response(wanted, bought)
        case "/v1/embeddings":
            return _embeddings(wanted, bought)
    return _images(wanted, bought)


def shape_of(output: object) -> str | None:
    if isinstance(output, dict):
        if output.get("object") == "response" or isinstance(output.get("output"), list):
            return RESPONSES
        if str(output.get("object", "")).startswith("chat.completion") or isinstance(output.get("choices"), list):
            return CHAT
    return None


def completion_id(job_id: str) -> str:
    return f"chatcmpl-{job_id[2:34]}"


def response_id(job_id: str) -> str:
    return f"resp_{job_id[2:34]}"


def completion(wanted: Wanted, bought: Bought) -> Json:
    output = bought.output
    match shape_of(output):
        case "/v1/responses":
            made = chat_of_response(output)
        case "/v1/chat/completions":
            made = {"choices": [_choice(each, at) for at, each in enumerate(output.get("choices") or ())]}
        case _:
            made = {"choices": [_choice({"message": {"content": _as_text(output)}}, 0)]}
    for choice in made["choices"]:
        choice.setdefault("logprobs", None)
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None) or {}
    return {
        "id": completion_id(bought.job_id),
        "object": "chat.completion",
        "created": bought.created,
        "model": wanted.name,
        "choices": made["choices"],
        "usage": usage_of_chat(usage),
        "svc": bought.told(),
    }


def _choice(given: object, at: int) -> Json:
    choice = given if isinstance(given, dict) else {}
    message = choice.get("message")
    message = dict(message) if isinstance(message, dict) else {"content": str(choice.get("text", ""))}
    kept = {name: value for name, value in message.items() if value is not None}
    ended = choice.get("finish_reason")
    known = {"stop", "length", "tool_calls", "content_filter", "function_call"}
    if ended not in known:
        ended = "tool_calls" if kept.get("tool_calls") else "stop"
    return {
        "index": choice.get("index", at),
        "message": {"content": None, "refusal": None, **kept, "role": "assistant"},
        "logprobs": choice.get("logprobs"),
        "finish_reason": ended,
    }


def response(wanted: Wanted, bought: Bought) -> Json:
    output, usage = bought.output, bought.usage
    match shape_of(output):
        case "/v1/responses":
            made = output
        case "/v1/chat/completions":
            made = response_of_chat(output)
        case _:
            made = response_of_chat({"choices": [{"message": {"content": _as_text(output)}}]})
    counted = usage or made.get("usage") or {}
    status = made.get("status")
    return response_shell(wanted, bought.job_id, bought.created) | {
        "status": status if status in {"completed", "incomplete", "failed"} else "completed",
        "incomplete_details": made.get("incomplete_details"),
        "output": [_item(item, bought.job_id, at) for at, item in enumerate(made.get("output") or ())],
        "usage": usage_of_response(counted),
        "svc": bought.told(),
    }


def response_shell(wanted: Wanted, job_id: str, created: int) -> Json:
    """A response without its output, as the first events of a stream show it."""
    asked = wanted.input
    return {
        "id": response_id(job_id),
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions") if isinstance(asked.get("instructions"), str) else None,
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": {},
        "model": wanted.name,
        "output": [],
        "parallel_tool_calls": bool(asked.get("parallel_tool_calls", True)),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": asked.get("temperature"),
        "text": asked["text"] if isinstance(asked.get("text"), dict) else {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []) if wanted.model.svc.endpoint != CHAT else [],
        "top_p": asked.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _item(item: object, job_id: str, at: int) -> Json:
    if not isinstance(item, dict):
        return {"type": "message", "id": f"msg_{job_id[2:26]}{at}", "role": "assistant", "content": []}
    kind = item.get("type", "message")
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(kind, "item")
    made = {**item, "type": kind, "id": item.get("id") or f"{prefix}_{job_id[2:26]}{at}"}
    match kind:
        case "message":
            parts = [part for part in item.get("content") or () if isinstance(part, dict)]
            made |= {"role": "assistant", "status": item.get("status") or "completed"}
            made["content"] = [
                {"annotations": [], "logprobs": [], **part} if part.get("type") == "output_text" else part
                for part in parts
            ]
        case "function_call":
            made["status"] = item.get("status") or "completed"
        case "reasoning":
            made["summary"] = item.get("summary") or []
    return made


def _as_text(output: object) -> str:
    return output if isinstance(output, str) else canonical(output).decode()


def _not_understood(bought: Bought, what: str) -> Problem:
    message = f"the provider's result holds {what}; svc result {bought.job_id} shows what it holds"
    return Problem(502, message, type="server_error", code="result_not_understood", job_id=bought.job_id)


def _embeddings(wanted: Wanted, bought: Bought) -> Json:
    output = bought.output
    rows = output.get("data") if isinstance(output, dict) else output
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        raise _not_understood(bought, "no embeddings")
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
    raise _not_understood(bought, "an embedding that is no list of numbers")


def _images(wanted: Wanted, bought: Bought) -> Json:
    output = bought.output
    rows = output.get("data", output) if isinstance(output, dict) else output
    images = [_image(row) for row in (rows if isinstance(rows, list) else [rows])]
    if not images or not all(image is not None for image in images):
        raise _not_understood(bought, "no images")
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


def headline(wanted: Wanted) -> str:
    """The kind of a purchase in the ledger."""
    return "embeddings" if wanted.route == EMBEDDINGS else wanted.route.removeprefix("/v1/").partition("/")[0]
