"""Answers in OpenAI's form, made of what a provider gave: chat completions, responses, embeddings, images.

An output is taken by its own shape, since providers of one model may run it behind different servers. A text of no
known shape comes as its JSON, as `svc run` shows it: it is paid for. What was counted and what it cost stand in every
answer, the cost under `svc`.
"""

import struct
from typing import Any, Final

from common.canonical_json import canonical
from common.refusal import Refused
from svc.serve.chat_of_response import chat_of_response
from svc.serve.media_answers import NOT_UNDERSTOOD, Bought, embeddings, images, not_understood
from svc.serve.problems import Problem
from svc.serve.requests import CHAT, EMBEDDINGS, RESPONSES, Wanted
from svc.serve.response_of_chat import response_of_chat
from svc.serve.usage import usage_of_chat, usage_of_response

Json = dict[str, Any]


# What comes of reading an output as something that it is not: it is the provider's, and may be anything.
_MISREAD: Final = (Refused, Problem, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, struct.error)


def answer_of(wanted: Wanted, bought: Bought) -> Json:
    """Raises Problem for an output that is no answer of the route."""
    try:
        match wanted.route:
            case "/v1/chat/completions":
                return completion(wanted, bought)
            case "/v1/responses":
                return response(wanted, bought)
            case "/v1/embeddings":
                return embeddings(wanted, bought)
        return images(wanted, bought)
    except _MISREAD as misread:
        if isinstance(misread, Problem) and misread.code == NOT_UNDERSTOOD:
            raise
        raise not_understood(bought, f"no answer of {wanted.route}") from None


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
    for name in ("content", "refusal", "reasoning_content"):
        if name in kept:
            kept[name] = _as_text(kept[name])
    if kept.get("tool_calls"):
        kept["tool_calls"] = [_called(call, number) for number, call in enumerate(kept["tool_calls"])]
    ended = choice.get("finish_reason")
    known = {"stop", "length", "tool_calls", "content_filter", "function_call"}
    if not isinstance(ended, str) or ended not in known:
        ended = "tool_calls" if kept.get("tool_calls") else "stop"
    return {
        "index": at,
        "message": {"content": None, "refusal": None, **kept, "role": "assistant"},
        "logprobs": choice.get("logprobs"),
        "finish_reason": ended,
    }


def _called(call: Any, number: int) -> Json:
    """Raises for what is no call of a function: it is not understood."""
    function = call["function"]
    told = {"name": str(function["name"]), "arguments": _as_text(function.get("arguments", ""))}
    return {**call, "id": str(call.get("id") or f"call_{number}"), "type": "function", "function": told}


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
        "status": status if status in ("completed", "incomplete", "failed") else "completed",
        "incomplete_details": made.get("incomplete_details"),
        "error": made.get("error") if status == "failed" else None,
        "output": [_item(item, bought.job_id, at) for at, item in enumerate(made.get("output") or ())],
        "usage": usage_of_response(counted),
        "svc": bought.told(),
    }


def response_shell(wanted: Wanted, job_id: str, created: int) -> Json:
    """A response without its output, as the first events of a stream show it."""
    asked = wanted.asked
    reasoning = asked.get("reasoning")
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
        "reasoning": {"effort": None, "summary": None} | (reasoning if isinstance(reasoning, dict) else {}),
        "store": False,
        "temperature": asked.get("temperature"),
        "text": asked["text"] if isinstance(asked.get("text"), dict) else {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_p": asked.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _item(item: object, job_id: str, at: int) -> Json:
    if not isinstance(item, dict):
        return {"type": "message", "id": f"msg_{job_id[2:26]}{at}", "role": "assistant", "content": []}
    kind = str(item.get("type", "message"))
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(kind, "item")
    made = {**item, "type": kind, "id": item.get("id") or f"{prefix}_{job_id[2:26]}{at}"}
    match kind:
        case "message":
            parts = [part for part in item.get("content") or () if isinstance(part, dict)]
            made |= {"role": "assistant", "status": item.get("status") or "completed"}
            made["content"] = [
                {"annotations": [], "logprobs": [], **part, "text": _as_text(part.get("text", ""))}
                if part.get("type") == "output_text"
                else part
                for part in parts
            ]
        case "function_call":
            made |= {"status": item.get("status") or "completed", "name": str(item["name"])}
            made["arguments"] = _as_text(item.get("arguments", ""))
            made["call_id"] = str(item.get("call_id") or made["id"])
        case "reasoning":
            made["summary"] = item.get("summary") or []
    return made


def _as_text(output: object) -> str:
    return output if isinstance(output, str) else canonical(output).decode()


def headline(wanted: Wanted) -> str:
    """The kind of a purchase in the ledger."""
    return "embeddings" if wanted.route == EMBEDDINGS else wanted.route.removeprefix("/v1/").partition("/")[0]
