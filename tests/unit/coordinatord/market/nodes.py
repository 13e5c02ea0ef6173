"""Scripted nodes without a network."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import requests
from requests.adapters import BaseAdapter
from web3 import Web3

from coordinatord.market.node import build_web3

URL = "https://user:word@node.example/v1/key-of-mine"
Answer = Callable[[str, list[Any]], httpx.Response]


class _Answers(BaseAdapter):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        body = json.loads(request.body or b"")
        try:
            answer = self.answer(body["method"], body["params"])
        except httpx.HTTPError as error:
            raise requests.ConnectionError(f"{request.url}: {error}") from error
        response = requests.Response()
        response.status_code = answer.status_code
        response._content = answer.content
        response.url = str(request.url)
        return response

    def close(self) -> None:
        pass


def node_that(answer: Answer) -> Web3:
    session = requests.Session()
    session.mount("https://", _Answers(answer))
    return build_web3(session, URL)


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: int, message: str, data: str | None = None, status: int = 200) -> httpx.Response:
    told: dict[str, object] = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return httpx.Response(status, json={"jsonrpc": "2.0", "id": 1, "error": told})


def answering(**results: object) -> Web3:
    """Answer by method name. Exceptions are raised."""
    return node_that(lambda method, _: result(results[method]))
