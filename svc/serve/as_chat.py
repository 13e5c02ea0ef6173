"""Translate a request of `/v1/responses` for a model that serves chat completions.

This is the reverse of `as_responses`, which has a table of the parameters.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from svc.serve.problems import invalid_request, unsupported_parameter

JsonObject = dict[str, Any]

_SHARED_PARAMETERS: Final = frozenset({"temperature", "top_p", "parallel_tool_calls"})
_TRANSLATED_PARAMETERS: Final = frozenset(
    {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning"}
)
# Values without effect. A parameter with such a value is dropped.
_IGNORED_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "truncation": ("disabled", "auto"),
    "include": ([],),
    "top_logprobs": (0,),
    "max_tool_calls": (),
    "stream": (False,),
}
_ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
_NO_COUNTERPART_TEXT: Final = "has no counterpart in /v1/chat/completions, the route of this model"


def to_chat_input(request: Mapping[str, Any], schema_parameters: Collection[str]) -> JsonObject:
    """Return the input for a model that serves chat completions."""
    body: JsonObject = {"messages": _chat_messages(request)}
    for name, value in request.items():
        if name in _SHARED_PARAMETERS or (name in schema_parameters and name not in _TRANSLATED_PARAMETERS):
            body[name] = value
        elif name not in _TRANSLATED_PARAMETERS and value not in _IGNORED_VALUES.get(name, ()):
            if name == "include" and isinstance(value, list) and all(each == _ENCRYPTED_REASONING for each in value):
                continue  # chat completions have no encrypted reasoning
            raise unsupported_parameter(name, _NO_COUNTERPART_TEXT)
    if request.get("max_output_tokens") is not None:
        body["max_completion_tokens"] = request["max_output_tokens"]
    if request.get("tools"):
        if not isinstance(request["tools"], list):
            raise invalid_request("tools must be a list", "tools")
        body["tools"] = [_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(request["tools"])]
    if (choice := request.get("tool_choice")) is not None:
        body["tool_choice"] = _tool_choice(choice)
    text = request.get("text")
    if isinstance(text, Mapping):
        if isinstance(format_json := text.get("format"), Mapping) and format_json.get("type") != "text":
            body["response_format"] = _response_format(format_json)
        if text.get("verbosity") is not None:
            body["verbosity"] = text["verbosity"]
    reasoning = request.get("reasoning")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        body["reasoning_effort"] = reasoning["effort"]
    return body


def _chat_messages(request: Mapping[str, Any]) -> list[JsonObject]:
    messages: list[JsonObject] = []
    if isinstance(instructions := request.get("instructions"), str) and instructions:
        messages.append({"role": "system", "content": instructions})
    input_value = request.get("input")
    if isinstance(input_value, str):
        return [*messages, {"role": "user", "content": input_value}]
    if not isinstance(input_value, list) or not input_value:
        raise invalid_request("input must be a text or a list of items", "input")
    for index, item in enumerate(input_value):
        if not isinstance(item, Mapping):
            raise invalid_request(f"input[{index}] must be an object", f"input[{index}]")
        _append_item(messages, item, f"input[{index}]")
    return messages


def _append_item(messages: list[JsonObject], item: Mapping[str, Any], param_path: str) -> None:
    """Append an input item to the chat. An assistant's message and the calls after it become one chat message."""
    match item.get("type", "message"):
        case "message":
            messages.append(_chat_message(item, param_path))
        case "function_call":
            call = {
                "id": str(item.get("call_id", "")),
                "type": "function",
                "function": {"name": str(item.get("name", "")), "arguments": str(item.get("arguments", ""))},
            }
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = _chat_content(item.get("output"), f"{param_path}.output")
            messages.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": output})
        case "reasoning":
            pass  # chat messages have no field for the reasoning of earlier answers
        case kind:
            raise unsupported_parameter(f"{param_path}.type", f"{kind!r} {_NO_COUNTERPART_TEXT}")


def _chat_message(item: Mapping[str, Any], param_path: str) -> JsonObject:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):  # a set would raise TypeError for a list
        raise invalid_request(f"{param_path}.role must be system, developer, user or assistant", f"{param_path}.role")
    content = _chat_content(item.get("content"), f"{param_path}.content")
    if role == "assistant" and isinstance(content, list):
        refusal = "".join(part["refusal"] for part in content if part["type"] == "refusal")
        if refusal:
            return {"role": role, "content": None, "refusal": refusal}
    return {"role": role, "content": content}


def _chat_content(content: object, param_path: str) -> object:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_request(f"{param_path} must be a text or a list of parts", param_path)
    parts = [_chat_part(part, f"{param_path}[{index}]") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _chat_part(part: object, param_path: str) -> JsonObject:
    if not isinstance(part, Mapping):
        raise invalid_request(f"{param_path} must be an object", param_path)
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": str(part.get("text", ""))}
        case "refusal":
            return {"type": "refusal", "refusal": str(part.get("refusal", ""))}
        case "input_image" if isinstance(part.get("image_url"), str):
            return {
                "type": "image_url",
                "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"},
            }
        case "input_file" if isinstance(part.get("file_data"), str):
            file = {"filename": str(part.get("filename") or "file"), "file_data": part["file_data"]}
            return {"type": "file", "file": file}
        case "input_image" | "input_file":
            raise unsupported_parameter(param_path, "must include its data: providers fetch nothing")
        case kind:
            raise unsupported_parameter(f"{param_path}.type", f"{kind!r} {_NO_COUNTERPART_TEXT}")


def _chat_tool(tool: object, param_path: str) -> JsonObject:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise unsupported_parameter(param_path, "must be a function: providers run no other tools")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: object) -> object:
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        raise unsupported_parameter("tool_choice", "must be auto, none, required, or name a function")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _response_format(format_json: Mapping[str, Any]) -> JsonObject:
    if format_json.get("type") == "json_object":
        return {"type": "json_object"}
    if format_json.get("type") != "json_schema":
        raise unsupported_parameter("text.format", "must be of type text, json_object or json_schema")
    schema = {name: value for name, value in format_json.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}
