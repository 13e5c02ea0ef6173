"""Translate a chat completion into a response. Only the first choice is used, because a response has one answer."""

from collections.abc import Mapping
from typing import Any

from svc.serve.as_responses import JsonObject, to_function_call_item
from svc.serve.usage import to_response_usage


def chat_to_response(completion: Mapping[str, Any]) -> JsonObject:
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    output: list[JsonObject] = []
    if isinstance(reasoning := message.get("reasoning_content") or message.get("reasoning"), str) and reasoning:
        output.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        output.append(_message_item({"type": "refusal", "refusal": refusal}))
    elif isinstance(content := message.get("content"), str) and (content or not message.get("tool_calls")):
        output.append(_message_item({"type": "output_text", "text": content, "annotations": [], "logprobs": []}))
    for index, call in enumerate(message.get("tool_calls") or ()):
        output.append(to_function_call_item(call, f"choices[0].message.tool_calls[{index}]"))
    finish_reason = choice.get("finish_reason")
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    response: JsonObject = {"output": output, "status": "incomplete" if finish_reason in reasons else "completed"}
    if finish_reason in reasons:
        response["incomplete_details"] = {"reason": reasons[finish_reason]}
    if isinstance(usage := completion.get("usage"), Mapping):
        response["usage"] = to_response_usage(usage)
    return response


def _message_item(part: JsonObject) -> JsonObject:
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
