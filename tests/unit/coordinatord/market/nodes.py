"""Nodes that answer as they are told, over no network."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from coordinatord.base.http_client import NoResponse
from coordinatord.market.node import RetryingNode

URL = "https://user:word@node.example/v1/key-of-mine"
Answer = Callable[[str, list[Any]], httpx.Response]


def node_that(answer: Answer) -> RetryingNode:
    """Whose sleeps take no time."""

    def post(request: bytes) -> tuple[int, bytes]:
        body = json.loads(request)
        try:
            response = answer(body["method"], body["params"])
        except httpx.HTTPError as error:
            raise NoResponse(type(error).__name__) from error
        return response.status_code, response.content

    return RetryingNode(post, URL, lambda _: None)


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: int, message: str, data: str | None = None, status: int = 200) -> httpx.Response:
    told: dict[str, object] = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return httpx.Response(status, json={"jsonrpc": "2.0", "id": 1, "error": told})


def answering(**results: object) -> RetryingNode:
    """By method; Exceptions are raised."""
    return node_that(lambda method, _: result(results[method]))
