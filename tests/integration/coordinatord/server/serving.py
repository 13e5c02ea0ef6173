"""A server with every layer of the API and a few test routes, and clients that send arbitrary bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
from anyio.abc import SocketStream

from common.api.limits import KIB
from common.daemon.asgi import ASGIApp
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets
from coordinatord.http.cors import CorsMiddleware, Origins
from coordinatord.http.dispatch import Dispatcher, DispatcherServices
from coordinatord.http.middleware import RequestMiddleware
from coordinatord.http.response_cache import BlockCache
from coordinatord.http.responses import Response
from coordinatord.http.routing import Body, Request, Route
from coordinatord.http.server.connection import Timeouts
from coordinatord.http.server.connections import ConnectionLimits
from coordinatord.http.server.serving import listening_socket, serve_until
from coordinatord.http.uploads import TransferLimits, UploadReader
from coordinatord.storage.database.snapshot_sql import Snapshot
from devnet.ports import LOOPBACK
from tests.support.fakes.index_position import Standing

ORIGIN = "https://app.example"
LARGE = bytes(32 << 20)  # more than all buffers between a server and a client that does not read
_ORIGINS = Origins.of([ORIGIN])
_ROOM = ConnectionLimits()


@attrs.define
class Served:
    """`paths` has those of the requests that reached a handler. `bodies` counts the bodies that were read."""

    port: int
    paths: list[str] = attrs.field(factory=list)
    bodies: int = 0
    stop: anyio.Event = attrs.field(factory=anyio.Event)
    stopped: anyio.Event = attrs.field(factory=anyio.Event)
    released: anyio.Event = attrs.field(factory=anyio.Event)
    waiting: anyio.Event = attrs.field(factory=anyio.Event)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Raw"]:
        async with await anyio.connect_tcp(LOOPBACK, self.port) as stream:
            yield Raw(stream)

    async def hello(self) -> None:
        """Send a valid request."""
        async with self.connected() as client:
            await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 200 ")

    def routes(self) -> list[Route]:
        async def hello(_: Request) -> Response:
            self.paths.append("/hello")
            return Response(200, b"{}")

        async def take(_: Request) -> Response:
            self.paths.append("/take")
            self.bodies += 1
            return Response(200, b"{}")

        async def large(_: Request) -> Response:
            self.paths.append("/large")
            return Response(200, LARGE)

        async def wait(_: Request) -> Response:
            self.waiting.set()
            await self.released.wait()
            return Response(200, b"{}")

        body = Body(64 * KIB, lambda values: values, dict, dict)
        route = partial(Route, id="served", tag="Served", about="", replies=())
        return [
            route(method="GET", path="/hello", handler=hello),
            route(method="GET", path="/large", handler=large),
            route(method="GET", path="/wait", handler=wait),
            route(method="POST", path="/take", handler=take, body=body),
        ]


@attrs.define
class Raw:
    stream: SocketStream

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def rest(self) -> bytes:
        """Read until the server closes the connection."""
        received = bytearray()
        with anyio.fail_after(60):
            try:
                async for piece in self.stream:
                    received += piece
            except anyio.BrokenResourceError:
                received += b"<reset>"
        return bytes(received)

    async def until(self, ending: bytes) -> bytes:
        received = b""
        with anyio.fail_after(60):
            while not received.endswith(ending):
                received += await self.stream.receive()
        return received


@asynccontextmanager
async def serving_app(app: ASGIApp, grace: float = 5, **options: Any) -> AsyncIterator[int]:
    """Serve this application until the block ends. Yield its port."""
    listening, stop = listening_socket(0, LOOPBACK), anyio.Event()
    listening.listen(1024)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(serve_until, app, listening, stop.wait, grace_seconds=grace, **options))
        try:
            yield listening.getsockname()[1]
        finally:
            stop.set()


@asynccontextmanager
async def serving(pace: Timeouts, *, grace: float = 20, room: ConnectionLimits = _ROOM) -> AsyncIterator[Served]:
    """Run a server with the routes of `Served`. The origin ORIGIN may read its responses."""
    listening = listening_socket(0, LOOPBACK)
    listening.listen(1024)
    served = Served(listening.getsockname()[1])

    async def serve() -> None:
        await serve_until(
            _stack(served.routes()),
            listening,
            served.stop.wait,
            grace_seconds=grace,
            timeouts=pace,
            limits=room,
            origins=_ORIGINS,
        )
        served.stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            yield served
        finally:
            served.released.set()
            served.stop.set()


def _stack(routes: list[Route]) -> ASGIApp:
    async def is_ready() -> bool:
        return True

    async def no_session(_: str) -> SessionRow | None:
        return None

    budget = BodyBudget(1 << 20)
    services = DispatcherServices(
        is_ready,
        no_session,
        BodyReader(60, 4096),
        budget,
        UploadReader(budget, TransferLimits(4, 4), 64 << 20, 4096, 10),
        BlockCache(Standing(Snapshot(1, b"", 1))),
    )
    # Identify callers by the forwarded header, as behind a proxy.
    proxies = frozenset({LOOPBACK})
    app = CallerLimits(Dispatcher(routes, services), TokenBuckets(1e9, 1e9), proxies)
    return RequestMiddleware(CorsMiddleware(app, _ORIGINS), _ORIGINS)
