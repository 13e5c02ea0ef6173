"""Nodes that answer as they are told, over no network."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from coordinatord.market.node import Node

URL = "https://user:word@node.example/v1/key-of-mine"
Answer = Callable[[str, list[Any]], httpx.Response]


def node_that(answer: Answer) -> Node:
    """Whose sleeps take no time."""

    def respond(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        return answer(body["method"], body["params"])

    return Node(httpx.Client(transport=httpx.MockTransport(respond)), URL, lambda _: None)


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: int, message: str, data: str | None = None, status: int = 200) -> httpx.Response:
    told: dict[str, object] = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return httpx.Response(status, json={"jsonrpc": "2.0", "id": 1, "error": told})


def answering(**results: object) -> Node:
    """By method; Exceptions are raised."""
    return node_that(lambda method, _: result(results[method]))
