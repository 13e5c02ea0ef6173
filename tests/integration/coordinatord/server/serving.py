"""A server over every layer of the API with a few routes of its own, and clients that write what they like to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import attrs
from anyio.abc import SocketStream
from starlette.types import ASGIApp

from coordinatord.api.answers import Answer
from coordinatord.api.bodies import BodyBudget, BodyReader
from coordinatord.api.caching import BlockCache
from coordinatord.api.callers import CallerLimits, TokenBuckets
from coordinatord.api.dispatch import Dispatcher, Gates
from coordinatord.api.frame import Frame
from coordinatord.api.routes import KIB, Body, Request, Route
from coordinatord.api.uploading import UploadReader
from coordinatord.server.listening import listening_socket
from coordinatord.server.pace import Pace
from coordinatord.server.serving import serve_until
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot
from devnet.ports import LOOPBACK, pick_free
from tests.fakes.index_position import Standing

LARGE = bytes(32 << 20)  # more than all buffers between a server and a client that does not read


@attrs.define
class Served:
    """`paths`: of the requests that reached a handler. `bodies`: how many of them came with a body that was read."""

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
        """An honest request."""
        async with self.connected() as client:
            await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 200 ")

    def routes(self) -> list[Route]:
        async def hello(_: Request) -> Answer:
            self.paths.append("/hello")
            return Answer(200, b"{}")

        async def take(_: Request) -> Answer:
            self.paths.append("/take")
            self.bodies += 1
            return Answer(200, b"{}")

        async def large(_: Request) -> Answer:
            self.paths.append("/large")
            return Answer(200, LARGE)

        async def wait(_: Request) -> Answer:
            self.waiting.set()
            await self.released.wait()
            return Answer(200, b"{}")

        body = Body(64 * KIB, lambda values: values, dict)
        route = partial(Route, about="", replies=())
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
        """All that comes until the server ends the connection."""
        received = bytearray()
        with anyio.fail_after(20):
            try:
                async for piece in self.stream:
                    received += piece
            except anyio.BrokenResourceError:
                received += b"<reset>"
        return bytes(received)

    async def until(self, ending: bytes) -> bytes:
        received = b""
        with anyio.fail_after(20):
            while not received.endswith(ending):
                received += await self.stream.receive()
        return received


@asynccontextmanager
async def serving(pace: Pace, *, body_deadline: float = 60, grace: float = 20) -> AsyncIterator[Served]:
    served = Served(pick_free())
    listening = listening_socket(served.port, LOOPBACK)
    listening.listen(1024)

    async def serve() -> None:
        app = _stack(served.routes(), body_deadline)
        await serve_until(app, listening, served.stop.wait, grace_seconds=grace, pace=pace)
        served.stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            yield served
        finally:
            served.released.set()
            served.stop.set()


def _stack(routes: list[Route], body_deadline: float) -> ASGIApp:
    async def is_ready() -> bool:
        return True

    async def no_session(_: str) -> SessionRow | None:
        return None

    budget = BodyBudget(1 << 20)
    gates = Gates(
        is_ready,
        no_session,
        BodyReader(body_deadline, 4096),
        budget,
        UploadReader(budget, 1 << 20, 4096, body_deadline),
        BlockCache(Standing(Snapshot(1, b"", 1))),
    )
    return Frame(CallerLimits(Dispatcher(routes, gates), TokenBuckets(1e9, 1e9), frozenset()))
