"""Streams of events, answers of model servers, load probes, and requests of OpenAI's clients."""

import json
import math
from collections.abc import AsyncIterator
from typing import Any, Final

from common.api.market import ModelDetails
from svc.errors import ConnectionFailed
from svc.records import Model
from svc.serve.problems import Problem
from svc.serve.requests import ROUTES, read_model_name, read_request
from svc.serve.settings import ServeSettings
from svc.wire.events import _read_status, read_messages
from svc.wire.server_sent_events import EventReader
from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import read_json_object, to_sealable_json
from svcd.backends.json_load import load_from_json
from svcd.backends.load_settings import JsonSettings, PrometheusSettings
from svcd.backends.openai_streams import ChatAssembler, ResponsesAssembler
from svcd.backends.prometheus_load import load_from_exposition
from svcd.base.end_reasons import WorkFailed
from svcd.base.json_path import JsonPath
from tests.fuzz.target import Target, cut, driven, refused

_FAILED: Final = (TryAgain, WorkFailed)


async def _in(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _told(pieces: list[bytes]) -> list[bytes]:
    return [message async for message in read_messages(_in(pieces)) if message is not None]


def _events(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def _assembled(kind: type[ChatAssembler | ResponsesAssembler], events: list[bytes]) -> object:
    assembler = kind()
    for event in events:
        if event == b"[DONE]":
            assembler.end()
        else:
            assembler.add_event(read_json_object(event))
    answer = assembler.answer()
    return None if answer is None else to_sealable_json(answer)


def check_streams(data: bytes) -> None:
    """Check that splits change nothing, and that a response is assembled or refused."""
    told = refused(lambda: driven(_told([data])), ConnectionFailed)
    assert told == refused(lambda: driven(_told(cut(data))), ConnectionFailed)
    events = _events([data])
    pieces = cut(data)
    assert _events(pieces) == events
    assert told in (None, events)
    for event in events:
        _read_status(event)
    for kind in (ChatAssembler, ResponsesAssembler):
        refused(lambda kind=kind: _assembled(kind, events), *_FAILED)


_JSON_LOAD: Final = JsonSettings(url="http://a", path=JsonPath.parse("a[0]"), full_at=8.0)
_PROMETHEUS: Final = PrometheusSettings(url="http://a")


def check_loads(data: bytes) -> None:
    """Check that a load is missing or from 0 to 1."""
    for load in (
        load_from_json(data, _JSON_LOAD),
        load_from_exposition(data.decode("utf-8", "replace"), _PROMETHEUS, 4),
    ):
        assert load is None or (math.isfinite(load) and 0 <= load <= 1), load


_RULE: Final = ServeSettings().rule_for(None)
_SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {"seed": {}, "quality": {}, "max_output_tokens": {}}}


def check_openai_requests(data: bytes) -> None:
    """Check that any JSON from an OpenAI client becomes an order that can be sealed, or a problem with its status."""
    if not data:
        return
    try:
        body = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    route = ROUTES[data[0] % len(ROUTES)]
    serves = ROUTES[data[0] // len(ROUTES) % len(ROUTES)]
    model = Model("demo/m", "demo", ModelDetails(1, True, _SCHEMA if data[0] & 128 else None, serves))
    try:
        read_model_name(body)
        wanted = read_request(route, body, model, _RULE)
    except Problem as problem:
        assert 400 <= problem.status < 500
        assert problem.body()
        return
    assert wanted.to_order_request().model == "demo/m"
    assert wanted.units_out is None or wanted.units_out >= 0, wanted.units_out


def _streams() -> list[bytes]:
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{"}}
    delta = {"role": "assistant", "content": "x", "tool_calls": [call]}
    chat = {"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    done = {"type": "response.completed", "response": {"output": []}}
    deep = b'{"choices":[{"delta":' + b'{"a":' * 470 + b"1" + b"}" * 470 + b"}]}"
    lists = b'{"choices":[{"delta":' + b'{"a":[{"index":1,"b":[' * 120 + b"1" + b"]}]}" * 120 + b"}]}"
    error = {"error": {"code": "503", "message": "x"}}
    texts = [json.dumps(chat).encode(), json.dumps(done).encode(), deep, lists, json.dumps(error).encode()]
    return [b"data: " + text + b"\n\ndata: [DONE]\n\n" for text in texts] + [b": hi\r\n\r\nevent: x\rdata:1\r\r"]


def _loads() -> list[bytes]:
    return [
        b'{"a":[1]}',
        b'{"a":[' + b"9" * 400 + b"]}",
        b'{"a":[-' + b"9" * 4299 + b"]}",
        b"# TYPE a gauge\nvllm:num_requests_running{a=\"b\"} 1 1\nvllm_gpu_cache_usage_perc NaN\n",
        b"sglang_num_queue_reqs 1e309\ntgi_queue_size 1e308\ntgi_batch_current_size 1e308\n",
    ]  # fmt: skip


def _clients() -> list[bytes]:
    function = {"name": "f", "parameters": {}}
    schema = {"name": "a", "schema": {}}
    called = {"call_id": "a", "name": "f", "arguments": "{}"}
    picture = {"type": "image_url", "image_url": {"url": "data:a"}}
    chat: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, picture]}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "n": 2,
        "max_tokens": 5,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "stop": ["a"],
    }
    asked = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [asked]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]
    responses: dict[str, Any] = {
        "model": "m",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", **called},
            {"type": "function_call_output", "call_id": "a", "output": "x"},
        ],
        "instructions": "i",
        "tools": [{"type": "function", **function}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", **schema}},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 5,
    }
    bodies = [
        chat,
        chat | {"messages": turns, "stream": True},
        responses,
        {"model": "m", "input": "x", "encoding_format": "base64"},
        {"model": "m", "prompt": "x", "size": "64x64", "n": 1, "quality": "auto"},
        {"model": "m", "messages": [], "n": 1, "max_tokens": True},
        {"model": "m", "input": [{"role": {}, "content": "a"}]},
        {"model": "m", "input": "a", "include": 1},
        {"model": "m", "input": "a", "tools": 1},
        {"model": "m", "input": "a", "encoding_format": []},
        {"model": "m", "prompt": "a", "response_format": {}},
        {"model": "m", "messages": [{"role": "assistant", "content": "a", "tool_calls": 1}]},
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": []}},
        {"model": "m", "messages": [], "n": 2, "max_tokens": -5},
    ]
    seeds = [bytes((n,)) + json.dumps(body).encode() for body in bodies for n in (0, 1, 4, 5, 10, 15, 128 + 16)]
    return [*seeds, b'\x00{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}"]


_STREAM_WORDS: Final = (
    *(
        b"data: ",
        b"\n\n",
        b"\r\n",
        b"event: ",
        b"[DONE]",
        b'{"choices":[',
        b'"delta":{',
        b'"index":0',
        b'"finish_reason":',
    ),
    *(
        b'"type":"response.completed"',
        b'"response":{',
        b'"error":{"code":',
        b'"tool_calls":[',
        b'"type":"error"',
        b".delta",
    ),
)
_CLIENT_WORDS: Final = (
    *(b'"messages":', b'"input":', b'"content":', b'"role":', b'"tools":', b'"tool_choice":', b'"type":"function"'),
    *(b"null", b"true", b"[]", b"{}", b"-1", b"1e9", b'"n":', b'"max_tokens":', b'"size":', b'"stream":', b'"text":'),
    *(b'"reasoning":', b'"response_format":', b'"image_url":', b'"input_image"', b'"file_id"', b'"item_reference"'),
)

TARGETS: Final = (
    Target("streams", check_streams, _streams, _STREAM_WORDS),
    Target(
        "loads",
        check_loads,
        _loads,
        (b"vllm:num_requests_running", b"{a=", b"# TYPE", b"NaN", b"+Inf", b"1e308", b'"a"'),
    ),
    Target("openai-requests", check_openai_requests, _clients, _CLIENT_WORDS),
)
