"""A real model behind OpenAI's routes, for `make serve-clients`: SmolLM2 of 135 million parameters on llama.cpp.

    python model_server.py WEIGHTS PORT

llama.cpp serves chat completions and responses; a small front before it does one thing more. A model of this size
calls no tools by itself, and this build of llama.cpp does not force it to: where a request holds tools and no result of
one yet, the front has the model write the arguments of the first tool under a JSON schema, and hands them on as the
call that a larger model would have made. Nor does this build's route of responses know conversations and formats: they
are asked of its route of chats, and told as a response. The words and the arguments are the model's own; that it calls
is the front's doing.
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import xllamacpp

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
_MOST_TOKENS = 24  # on a processor without a graphics card each takes its time
_MOST_OF_A_SCHEMA = 100


def llama(weights: Path) -> "xllamacpp.Server":
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 1
    params.use_jinja = True
    params.verbosity = 0
    return xllamacpp.Server(params)


class Front(BaseHTTPRequestHandler):
    upstream = ""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(404, {"error": {"message": "no list of models here", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        for name in ("stream", "stream_options"):
            body.pop(name, None)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if name in body:
                formed = body.get("response_format") or body.get("text") or body.get("tools")
                body[name] = min(body[name], _MOST_OF_A_SCHEMA if formed else _MOST_TOKENS)
        try:
            answer = self._called(body) if self._wants_call(body) else self._said(_without_tools(body))
        except urllib.error.HTTPError as refused:
            self._send(refused.code, json.loads(refused.read()))
            return
        self._send(200, answer)

    def _said(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path == CHAT or not (isinstance(body["input"], list) or body.get("text")):
            return self._asked(self.path, body)
        wanted = body.get("text", {}).get("format", {"type": "text"})
        chat = _as_chat(body) | {"max_tokens": body.get("max_output_tokens", _MOST_TOKENS)}
        if wanted["type"] == "json_schema":
            chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "it", "schema": wanted["schema"]}}
        answer = self._asked(CHAT, chat)
        text = answer["choices"][0]["message"]["content"]
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        return _response(item, answer["usage"])

    def _wants_call(self, body: dict[str, Any]) -> bool:
        said = body.get("messages", body.get("input"))
        told = said if isinstance(said, list) else []
        done = any(item.get("role") == "tool" or item.get("type") == "function_call_output" for item in told)
        return bool(body.get("tools")) and body.get("tool_choice") != "none" and not done

    def _called(self, body: dict[str, Any]) -> dict[str, Any]:
        tool = body["tools"][0]
        function = tool.get("function", tool)
        schema = {"name": "arguments", "schema": function["parameters"]}
        plain = _as_chat(_without_tools(body)) | {"response_format": {"type": "json_schema", "json_schema": schema}}
        answer = self._asked(CHAT, plain | {"max_tokens": _MOST_OF_A_SCHEMA, "temperature": 0})
        arguments = answer["choices"][0]["message"]["content"]
        if self.path == CHAT:
            call = {"id": "call_1", "type": "function"}
            call["function"] = {"name": function["name"], "arguments": arguments}
            answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
            answer["choices"][0]["finish_reason"] = "tool_calls"
            return answer
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": function["name"]}
        return _response(item | {"arguments": arguments, "status": "completed"}, answer["usage"])

    def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.upstream + path, json.dumps(body).encode())  # noqa: S310 - our own
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
            read: dict[str, Any] = json.loads(answer.read())
            return read

    def _send(self, status: int, value: object) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def _without_tools(body: dict[str, Any]) -> dict[str, Any]:
    """The tools are the front's. Results of calls are told to the model as its user's words."""
    kept = {name: value for name, value in body.items() if name not in {"tools", "tool_choice", "parallel_tool_calls"}}
    for name in ("messages", "input"):
        if isinstance(kept.get(name), list):
            kept[name] = [told for item in kept[name] if (told := _plain(item)) is not None]
    return kept


def _plain(item: dict[str, Any]) -> dict[str, Any] | None:
    if item.get("role") == "tool":
        return {"role": "user", "content": f"The result is: {item['content']}"}
    if item.get("type") == "function_call_output":
        return {"role": "user", "content": f"The result is: {item['output']}"}
    if item.get("type") == "function_call" or item.get("tool_calls"):
        return None
    return item


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    if "messages" in body:
        return {"messages": body["messages"]}
    said = body["input"]
    items = said if isinstance(said, list) else [{"role": "user", "content": said}]
    messages = [{"role": item["role"], "content": _text(item["content"])} for item in items]
    told = body.get("instructions")
    return {"messages": [{"role": "system", "content": told}, *messages] if told else messages}


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _response(item: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
    counted = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": counted}


if __name__ == "__main__":
    server = llama(Path(sys.argv[1]))
    Front.upstream = server.listening_address
    front = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Front)
    print(f"listening on {front.server_address[1]}", flush=True)
    threading.Thread(target=front.serve_forever).start()
