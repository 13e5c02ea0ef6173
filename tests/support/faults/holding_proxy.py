"""An HTTP proxy between a provider and its coordinator that holds a call on demand, so that a test can kill the daemon
there.

    async with holding_proxy(coordinator_url, gateway_url) as proxy:     # proxy.url serves both
        reached = proxy.hold("settle", job_id, before=True)              # keep its settle from the coordinator
        await reached.wait()
        proxy.abandon_held()

Calls have a provider's names: an op's name, `poll`, `fetch`, otherwise the last word of the path.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import httpx
from hypercorn.asyncio import serve
from hypercorn.config import Config

from devnet.ports import pick_free

_KEPT: Final = {b"content-type", b"authorization", b"x-svc-retryable", b"date"}


@attrs.frozen
class _Hold:
    name: str
    about: bytes
    before: bool
    reached: anyio.Event = attrs.field(factory=anyio.Event)
    forwarded: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define
class HoldingProxy:
    url: str
    _coordinator: str
    _gateway: str
    _http: httpx.AsyncClient
    _holds: list[_Hold] = attrs.field(factory=list)

    def hold(self, name: str, about: str, *, before: bool) -> anyio.Event:
        """Hold every such call whose path or body contains `about`. With `before`, hold the request before it reaches
        the coordinator. Otherwise hold the response. Sets the event when the first call is held."""
        self._holds.append(_Hold(name, about.encode(), before))
        return self._holds[-1].reached

    def abandon_held(self) -> None:
        """Stop holding calls. Calls held so far never get a response."""
        self._holds.clear()

    def forward(self) -> None:
        """End all holds, and send the calls held before the coordinator on to it."""
        for hold in self._holds:
            hold.forwarded.set()
        self._holds.clear()

    def _hold_of(self, scope: Any, body: bytes) -> _Hold | None:
        name, said = _name(scope, body), scope["raw_path"] + body
        return next((hold for hold in self._holds if hold.name == name and hold.about in said), None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        hold = self._hold_of(scope, body)
        if hold is not None and hold.before:
            async with anyio.create_task_group() as tasks:

                async def kept() -> None:
                    await _keep(hold, receive)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(kept)
                await hold.forwarded.wait()
                tasks.cancel_scope.cancel()
            if not hold.forwarded.is_set():
                return
            hold = None
        upstream = self._gateway if scope["path"].startswith("/ipfs/") else self._coordinator
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [(name, value) for name, value in scope["headers"] if name in _KEPT]
        url = upstream + scope["raw_path"].decode().partition("?")[0] + query
        if (scope["method"], _name(scope, body)) == ("GET", "messages"):
            await self._stream(url, headers, receive, send)
            return
        answer = await self._http.request(scope["method"], url, content=body, headers=headers)
        if hold is not None:
            await _keep(hold, receive)
            return
        kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() in _KEPT]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        await send({"type": "http.response.body", "body": answer.content})

    async def _stream(self, url: str, headers: list[tuple[bytes, bytes]], receive: Any, send: Any) -> None:
        """Pass an endless answer on as it arrives."""
        async with (
            anyio.create_task_group() as tasks,
            self._http.stream("GET", url, headers=headers, timeout=None) as answer,
        ):

            async def until_disconnected() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_disconnected)
            kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() in _KEPT]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def _keep(hold: _Hold, receive: Any) -> None:
    hold.reached.set()
    while (await receive())["type"] != "http.disconnect":
        pass


def _name(scope: Any, body: bytes) -> str:
    path = str(scope["path"])
    if path == "/evm/ops":
        return str(json.loads(body)["op"])
    if path == "/evm/jobs" and b"free=" in scope["query_string"]:
        return "poll"
    return "fetch" if path.startswith("/ipfs/") else path.rpartition("/")[2]


@asynccontextmanager
async def holding_proxy(coordinator: str, gateway: str) -> AsyncIterator[HoldingProxy]:
    """Serve on a free loopback port until the block ends."""
    config, stop = Config(), anyio.Event()
    config.bind = [f"127.0.0.1:{pick_free()}"]
    config.graceful_timeout = config.shutdown_timeout = 0.1
    async with httpx.AsyncClient(trust_env=False, timeout=100) as http, anyio.create_task_group() as tasks:
        proxy = HoldingProxy(f"http://{config.bind[0]}", coordinator, gateway, http)

        async def serving() -> None:
            await serve(proxy, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type] # its own type of applications

        tasks.start_soon(serving)
        yield proxy
        stop.set()
