"""Build OpenAI's answers from a provider's output: chat completions, responses, embeddings and images.

Providers of one model may run different servers, so the output is recognised by its shape. An output of unknown shape
becomes the text of a chat completion or a response, because the buyer has paid for it. Every answer has its cost in the
member `svc`.
"""

import struct
from typing import Any, Final

from common.canonical_json import canonical
from common.refusal import Refused
from svc.serve.chat_to_response import chat_to_response
from svc.serve.media_answers import (
    NOT_UNDERSTOOD_CODE,
    BoughtAnswer,
    build_embeddings,
    build_images,
    not_understood_problem,
)
from svc.serve.problems import Problem
from svc.serve.request_ids import split_tab_request_id
from svc.serve.requests import CHAT, EMBEDDINGS, RESPONSES, AnswerRequest
from svc.serve.response_to_chat import response_to_chat
from svc.serve.usage import to_chat_usage, to_response_usage

JsonObject = dict[str, Any]


# Errors that reading a provider's output can raise. The output may be any JSON value.
_PARSE_ERRORS: Final = (
    Refused,
    Problem,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    struct.error,
)


def build_answer(requested: AnswerRequest, bought: BoughtAnswer) -> JsonObject:
    """Return the answer in the form of the requested route. Raises Problem if the output does not fit this form."""
    try:
        match requested.route:
            case "/v1/chat/completions":
                return build_completion(requested, bought)
            case "/v1/responses":
                return build_response(requested, bought)
            case "/v1/embeddings":
                return build_embeddings(requested, bought)
        return build_images(requested, bought)
    except _PARSE_ERRORS as error:
        if isinstance(error, Problem) and error.code == NOT_UNDERSTOOD_CODE:
            raise
        raise not_understood_problem(bought, f"no answer that fits {requested.route}") from None


def detect_output_route(output: object) -> str | None:
    """Return the text route whose answers have this shape, or None for an unknown shape."""
    if isinstance(output, dict):
        if output.get("object") == "response" or isinstance(output.get("output"), list):
            return RESPONSES
        if str(output.get("object", "")).startswith("chat.completion") or isinstance(output.get("choices"), list):
            return CHAT
    return None


def completion_id(job_id: str) -> str:
    return f"chatcmpl-{_id_suffix(job_id)}"


def response_id(job_id: str) -> str:
    return f"resp_{_id_suffix(job_id)}"


def message_id(job_id: str, index: int) -> str:
    return f"msg_{job_id[2:26]}{index}"


def _id_suffix(job_id: str) -> str:
    job, request = split_tab_request_id(job_id)
    return job[2:34] if request is None else f"{job[2:34]}-{request}"


def build_completion(requested: AnswerRequest, bought: BoughtAnswer) -> JsonObject:
    output = bought.output
    match detect_output_route(output):
        case "/v1/responses":
            converted = response_to_chat(output)
        case "/v1/chat/completions":
            converted = {
                "choices": [_completion_choice(each, index) for index, each in enumerate(output.get("choices") or ())]
            }
        case _:
            converted = {"choices": [_completion_choice({"message": {"content": _to_text(output)}}, 0)]}
    for choice in converted["choices"]:
        choice.setdefault("logprobs", None)
    usage = bought.usage or (output.get("usage") if isinstance(output, dict) else None) or {}
    return {
        "id": completion_id(bought.job_id),
        "object": "chat.completion",
        "created": bought.created_at,
        "model": requested.model_name,
        "choices": converted["choices"],
        "usage": to_chat_usage(usage),
        "svc": bought.to_json(),
    }


def _completion_choice(provider_choice: object, index: int) -> JsonObject:
    choice = provider_choice if isinstance(provider_choice, dict) else {}
    message = choice.get("message")
    message = dict(message) if isinstance(message, dict) else {"content": str(choice.get("text", ""))}
    fields = {name: value for name, value in message.items() if value is not None}
    for name in ("content", "refusal", "reasoning_content"):
        if name in fields:
            fields[name] = _to_text(fields[name])
    if fields.get("tool_calls"):
        fields["tool_calls"] = [_read_tool_call(call, number) for number, call in enumerate(fields["tool_calls"])]
    finish_reason = choice.get("finish_reason")
    known = {"stop", "length", "tool_calls", "content_filter", "function_call"}
    if not isinstance(finish_reason, str) or finish_reason not in known:
        finish_reason = "tool_calls" if fields.get("tool_calls") else "stop"
    return {
        "index": index,
        "message": {"content": None, "refusal": None, **fields, "role": "assistant"},
        "logprobs": choice.get("logprobs"),
        "finish_reason": finish_reason,
    }


def _read_tool_call(call: Any, number: int) -> JsonObject:
    """Return a function call in OpenAI's form. Raises one of _PARSE_ERRORS for any other value."""
    function = call["function"]
    function_json = {"name": str(function["name"]), "arguments": _to_text(function.get("arguments", ""))}
    return {**call, "id": str(call.get("id") or f"call_{number}"), "type": "function", "function": function_json}


def build_response(requested: AnswerRequest, bought: BoughtAnswer) -> JsonObject:
    output, usage = bought.output, bought.usage
    match detect_output_route(output):
        case "/v1/responses":
            converted = output
        case "/v1/chat/completions":
            converted = chat_to_response(output)
        case _:
            converted = chat_to_response({"choices": [{"message": {"content": _to_text(output)}}]})
    counted = usage or converted.get("usage") or {}
    status = converted.get("status")
    return empty_response(requested, bought.job_id, bought.created_at) | {
        "status": status if status in ("completed", "incomplete", "failed") else "completed",
        "incomplete_details": converted.get("incomplete_details"),
        "error": converted.get("error") if status == "failed" else None,
        "output": [
            _response_item(item, bought.job_id, index) for index, item in enumerate(converted.get("output") or ())
        ],
        "usage": to_response_usage(counted),
        "svc": bought.to_json(),
    }


def empty_response(requested: AnswerRequest, job_id: str, created_at: int) -> JsonObject:
    """Return a response without output, as the first events of a stream show it."""
    parameters = requested.parameters
    reasoning = parameters.get("reasoning")
    return {
        "id": response_id(job_id),
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": parameters.get("instructions") if isinstance(parameters.get("instructions"), str) else None,
        "max_output_tokens": parameters.get("max_output_tokens"),
        "metadata": {},
        "model": requested.model_name,
        "output": [],
        "parallel_tool_calls": bool(parameters.get("parallel_tool_calls", True)),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None} | (reasoning if isinstance(reasoning, dict) else {}),
        "store": False,
        "temperature": parameters.get("temperature"),
        "text": parameters["text"] if isinstance(parameters.get("text"), dict) else {"format": {"type": "text"}},
        "tool_choice": parameters.get("tool_choice", "auto"),
        "tools": parameters.get("tools", []),
        "top_p": parameters.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _response_item(item: object, job_id: str, index: int) -> JsonObject:
    if not isinstance(item, dict):
        return {"type": "message", "id": f"msg_{job_id[2:26]}{index}", "role": "assistant", "content": []}
    kind = str(item.get("type", "message"))
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(kind, "item")
    converted = {**item, "type": kind, "id": item.get("id") or f"{prefix}_{job_id[2:26]}{index}"}
    match kind:
        case "message":
            parts = [part for part in item.get("content") or () if isinstance(part, dict)]
            converted |= {"role": "assistant", "status": item.get("status") or "completed"}
            converted["content"] = [
                {"annotations": [], "logprobs": [], **part, "text": _to_text(part.get("text", ""))}
                if part.get("type") == "output_text"
                else part
                for part in parts
            ]
        case "function_call":
            converted |= {"status": item.get("status") or "completed", "name": str(item["name"])}
            converted["arguments"] = _to_text(item.get("arguments", ""))
            converted["call_id"] = str(item.get("call_id") or converted["id"])
        case "reasoning":
            converted["summary"] = item.get("summary") or []
    return converted


def _to_text(output: object) -> str:
    return output if isinstance(output, str) else canonical(output).decode()


def purchase_kind(requested: AnswerRequest) -> str:
    """Return the kind under which the ledger records this purchase: chat, responses, embeddings or images."""
    return "embeddings" if requested.route == EMBEDDINGS else requested.route.removeprefix("/v1/").partition("/")[0]
