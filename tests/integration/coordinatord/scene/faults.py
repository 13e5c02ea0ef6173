"""A transport that intercepts requests to a service and can answer them itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

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
