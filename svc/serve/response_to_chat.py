"""Translate a response into a chat completion."""

from collections.abc import Mapping
from typing import Any

from svc.serve.as_chat import JsonObject
from svc.serve.usage import to_chat_usage


def response_to_chat(response: Mapping[str, Any]) -> JsonObject:
    texts, refusals, thoughts, calls = [], [], [], []
    output = response.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, Mapping):
            continue
        match item.get("type"):
            case "message":
                for part in item.get("content") or ():
                    if isinstance(part, Mapping) and part.get("type") == "output_text":
                        texts.append(str(part.get("text", "")))
                    elif isinstance(part, Mapping) and part.get("type") == "refusal":
                        refusals.append(str(part.get("refusal", "")))
            case "function_call":
                function = {"name": str(item.get("name", "")), "arguments": str(item.get("arguments", ""))}
                calls.append({"id": str(item.get("call_id", "")), "type": "function", "function": function})
            case "reasoning":
                thoughts += [
                    str(part.get("text", "")) for part in item.get("summary") or () if isinstance(part, Mapping)
                ]
    message: JsonObject = {"role": "assistant", "content": "".join(texts) if texts or not (calls or refusals) else None}
    message["refusal"] = "".join(refusals) or None
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    completion: JsonObject = {
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(response, bool(calls))}]
    }
    if isinstance(usage := response.get("usage"), Mapping):
        completion["usage"] = to_chat_usage(usage)
    return completion


def _finish_reason(response: Mapping[str, Any], has_calls: bool) -> str:
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    if response.get("status") == "incomplete" or reason is not None:
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"
