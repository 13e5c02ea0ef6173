"""Translate a request of `/v1/chat/completions` for a model that serves responses.

    chat                                    responses
    messages                                input: messages, function_call and function_call_output items
    max_completion_tokens, max_tokens       max_output_tokens
    tools[].function, tool_choice           the same without the inner `function` object
    response_format                         text.format
    reasoning_effort, verbosity             reasoning.effort, text.verbosity

A parameter without a counterpart is rejected, unless the model's schema lists its name or its value has no effect
(`n` of 1, a penalty of 0).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from svc.serve.problems import invalid_request, unsupported_parameter

JsonObject = dict[str, Any]

_OUTPUT_CAPS: Final = ("max_completion_tokens", "max_tokens")
_SHARED_PARAMETERS: Final = frozenset(
    {"temperature", "top_p", "parallel_tool_calls", "tool_choice", "include", "truncation"}
)
_TRANSLATED_PARAMETERS: Final = frozenset(
    {"messages", *_OUTPUT_CAPS, "tools", "response_format", "reasoning_effort", "verbosity", "top_logprobs", "logprobs"}
)
# Values without effect. A parameter with such a value is dropped.
_IGNORED_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([], ""),
    "modalities": (["text"],),
    "stream": (False,),
    "functions": ([],),
    "function_call": ("auto", "none"),
}


def to_responses_input(chat: Mapping[str, Any], schema_parameters: Collection[str]) -> JsonObject:
    """Return the input for a model that serves responses."""
    body: JsonObject = {"input": _response_items(chat.get("messages"))}
    text: JsonObject = {}
    for name, value in chat.items():
        if name in _SHARED_PARAMETERS or (name in schema_parameters and name not in _TRANSLATED_PARAMETERS):
            body[name] = value
        elif name not in _TRANSLATED_PARAMETERS and value not in _IGNORED_VALUES.get(name, ()):
            raise unsupported_parameter(name, "has no counterpart in /v1/responses, the route of this model")
    if chat.get("logprobs") or chat.get("top_logprobs"):
        raise unsupported_parameter("logprobs", "has no counterpart in /v1/responses, the route of this model")
    cap = next((chat[name] for name in _OUTPUT_CAPS if chat.get(name) is not None), None)
    if cap is not None:
        body["max_output_tokens"] = cap
    if chat.get("tools"):
        body["tools"] = [
            _response_tool(tool, f"tools[{index}]") for index, tool in enumerate(_read_list(chat["tools"], "tools"))
        ]
    if isinstance(choice := chat.get("tool_choice"), Mapping):
        body["tool_choice"] = _tool_choice(choice)
    if (format_json := chat.get("response_format")) is not None:
        text["format"] = _text_format(format_json)
    if chat.get("verbosity") is not None:
        text["verbosity"] = chat["verbosity"]
    if text:
        body["text"] = text
    if chat.get("reasoning_effort") is not None:
        body["reasoning"] = {"effort": chat["reasoning_effort"]}
    return body


def _response_items(messages: object) -> list[JsonObject]:
    items: list[JsonObject] = []
    for index, message in enumerate(_read_list(messages, "messages")):
        param_path = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise invalid_request(f"{param_path} must be an object with a role", param_path)
        items += _message_items(message, param_path)
    if not items:
        raise invalid_request("messages must contain at least one message", "messages")
    return items


def _message_items(message: Mapping[str, Any], param_path: str) -> list[JsonObject]:
    role, content = message["role"], message.get("content")
    match role:
        case "system" | "developer" | "user":
            return [{"role": role, "content": _response_content(content, f"{param_path}.content")}]
        case "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str):
                raise invalid_request(
                    f"{param_path}.tool_call_id must name the answered call", f"{param_path}.tool_call_id"
                )
            return [
                {
                    "type": "function_call_output",
                    "call_id": call_id,
                    "output": _plain_text(content, f"{param_path}.content"),
                }
            ]
        case "assistant":
            message_items = _assistant_items(message, param_path)
            calls = _read_list(message.get("tool_calls") or [], f"{param_path}.tool_calls")
            return message_items + [
                to_function_call_item(call, f"{param_path}.tool_calls[{n}]") for n, call in enumerate(calls)
            ]
    raise unsupported_parameter(
        f"{param_path}.role", f"{role!r} must be one of system, developer, user, assistant, tool"
    )


def _assistant_items(message: Mapping[str, Any], param_path: str) -> list[JsonObject]:
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(refusal, str) and refusal:
        return [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}]
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"role": "assistant", "content": content}]
    return [{"role": "assistant", "content": _plain_text(content, f"{param_path}.content")}]


def to_function_call_item(call: object, param_path: str) -> JsonObject:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise unsupported_parameter(param_path, "must be a function call")
    return {
        "type": "function_call",
        "call_id": str(call.get("id", "")),
        "name": str(function.get("name", "")),
        "arguments": str(function.get("arguments", "")),
    }


def _response_content(content: object, param_path: str) -> object:
    """Return a text unchanged, because both routes accept texts. Translate a list of parts."""
    if isinstance(content, str):
        return content
    parts = _read_list(content, param_path)
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts) and len(parts) == 1:
        return str(parts[0].get("text", ""))
    return [_response_part(part, f"{param_path}[{index}]") for index, part in enumerate(parts)]


def _response_part(part: object, param_path: str) -> JsonObject:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping):
        raise invalid_request(f"{param_path} must be an object", param_path)
    match kind:
        case "text":
            return {"type": "input_text", "text": str(part.get("text", ""))}
        case "image_url":
            image = part.get("image_url")
            if not isinstance(image, Mapping) or not isinstance(image.get("url"), str):
                raise invalid_request(f"{param_path}.image_url.url must be a data: URL", param_path)
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
        case "file":
            file = part.get("file")
            if not isinstance(file, Mapping) or not isinstance(file.get("file_data"), str):
                raise unsupported_parameter(param_path, "must include its data as file_data: providers fetch nothing")
            return {
                "type": "input_file",
                "filename": str(file.get("filename", "file")),
                "file_data": file["file_data"],
            }
    raise unsupported_parameter(
        f"{param_path}.type", f"{kind!r} has no counterpart in /v1/responses, the route of this model"
    )


def _plain_text(content: object, param_path: str) -> str:
    """Return the text of a message. Only text parts are allowed."""
    if isinstance(content, str):
        return content
    parts = _read_list(content, param_path)
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        raise unsupported_parameter(param_path, "must be a text")
    return "".join(str(part.get("text", "")) for part in parts)


def _response_tool(tool: object, param_path: str) -> JsonObject:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(function, Mapping):
        raise unsupported_parameter(param_path, "must be a function: providers run no other tools")
    return {"type": "function", "parameters": None, "strict": False, **function}


def _tool_choice(choice: Mapping[str, Any]) -> JsonObject:
    function = choice.get("function")
    if choice.get("type") != "function" or not isinstance(function, Mapping):
        raise unsupported_parameter("tool_choice", "must be auto, none, required, or name a function")
    return {"type": "function", "name": function.get("name")}


def _text_format(format_json: object) -> JsonObject:
    kind = format_json.get("type") if isinstance(format_json, Mapping) else None
    if not isinstance(format_json, Mapping) or kind not in ("text", "json_object", "json_schema"):
        raise unsupported_parameter("response_format", "must be of type text, json_object or json_schema")
    if kind != "json_schema":
        return {"type": kind}
    schema = format_json.get("json_schema")
    if not isinstance(schema, Mapping):
        raise invalid_request("response_format.json_schema must be an object", "response_format.json_schema")
    return {"type": kind, **schema}


def _read_list(value: object, param_path: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid_request(f"{param_path} must be a list", param_path)
    return value
