"""Transports that intercept requests to a service, and faults of the node per JSON-RPC call."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from common.abi import selector
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Transport
from tests.support.fakes.streamed import streamed

Rule = Callable[[httpx.Request], httpx.Response | None]


class Faults(httpx.AsyncBaseTransport):
    """Pass requests on, unless a rule answers or raises first."""

    def __init__(self) -> None:
        # Shorter than servers keep connections, because a request on a connection that was just closed is lost.
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(keepalive_expiry=2))
        self._rules: list[Rule] = []

    @contextmanager
    def answering(self, rule: Rule) -> Iterator[None]:
        self._rules.append(rule)
        try:
            yield
        finally:
            self._rules.remove(rule)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        for rule in self._rules:
            response = rule(request)
            if response is not None:
                return streamed(response)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def node_transport(client: httpx.AsyncClient, url: str) -> Transport:
    """Return the transport of the chain's client, over an HTTP client that has `Faults`."""

    async def post(body: bytes) -> tuple[int, bytes]:
        try:
            response = await client.post(url, content=body, headers={"content-type": "application/json"})
        except httpx.HTTPError as trouble:
            raise NoResponse(type(trouble).__name__) from trouble
        return response.status_code, response.content

    return post


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def status(code: int) -> Rule:
    return lambda _: httpx.Response(code)


Which = Callable[[dict[str, Any]], bool]


def node_error(which: Which, code: int = -32603, message: str = "internal error", *, only: bool = False) -> Rule:
    """Answer all calls of a request that contains a matching call with this error."""

    def rule(request: httpx.Request) -> httpx.Response | None:
        body = json.loads(request.content)
        calls = body if isinstance(body, list) else [body]
        if not any(which(call) for call in calls):
            return None
        answers = []
        for call in calls:
            answer = {"jsonrpc": "2.0", "id": call["id"]}
            if only and not which(call):
                answers.append(answer | {"result": "0x" + "00" * 31 + "01"})
            else:
                answers.append(answer | {"error": {"code": code, "message": message}})
        return httpx.Response(200, json=answers if isinstance(body, list) else answers[0])

    return rule


def method(name: str) -> Which:
    return lambda call: call["method"] == name


def view(signature: str) -> Which:
    """Match an eth_call of this function."""
    digits = "0x" + selector(signature).hex()
    return lambda call: call["method"] == "eth_call" and call["params"][0]["data"].startswith(digits)
