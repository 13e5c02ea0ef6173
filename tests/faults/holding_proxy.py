"""An HTTP proxy between a provider and its coordinator that holds a call on demand: where to kill a daemon.

    async with holding_proxy(coordinator_url, gateway_url) as proxy:     # proxy.url serves both
        with proxy.hold("settle", before=True) as reached:               # the settle is kept from the coordinator
            await reached.wait()

Calls are named as providers know them: an op by its name, `poll`, `fetch`, else the last word of the path.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
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
    before: bool
    reached: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define
class HoldingProxy:
    url: str
    _coordinator: str
    _gateway: str
    _http: httpx.AsyncClient
    _holds: dict[str, _Hold] = attrs.field(factory=dict)

    @contextmanager
    def hold(self, name: str, *, before: bool) -> Iterator[anyio.Event]:
        """Until the block ends each such call is held: `before` it reaches the coordinator, or else its answer."""
        hold = self._holds[name] = _Hold(before)
        try:
            yield hold.reached
        finally:
            del self._holds[name]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        hold = self._holds.get(_name(scope, body))
        if hold is not None and hold.before:
            await _keep(hold, receive)
            return
        upstream = self._gateway if scope["path"].startswith("/ipfs/") else self._coordinator
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [(name, value) for name, value in scope["headers"] if name in _KEPT]
        url = upstream + scope["raw_path"].decode().partition("?")[0] + query
        answer = await self._http.request(scope["method"], url, content=body, headers=headers)
        if hold is not None:
            await _keep(hold, receive)
            return
        kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() in _KEPT]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        await send({"type": "http.response.body", "body": answer.content})


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
    """On a free port of the loopback until the block ends."""
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
