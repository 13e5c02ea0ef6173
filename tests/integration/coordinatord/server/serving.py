"""A server with every layer of the API and a few test routes, and clients that send arbitrary bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

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
from coordinatord.http.routing import Body, Form, Request, Route
from coordinatord.http.server.connection import Timeouts
from coordinatord.http.server.connections import ConnectionLimits
from coordinatord.http.server.serving import listening_socket, serve_until
from coordinatord.http.uploads import TransferLimits, UploadReader
from coordinatord.storage.database.snapshot_sql import Snapshot
from devnet.ports import LOOPBACK, pick_free
from tests.support.fakes.index_position import Standing

ORIGIN = "https://app.example"
LARGE = bytes(32 << 20)  # more than all buffers between a server and a client that does not read
_ORIGINS = Origins.of([ORIGIN])
_ROOM = ConnectionLimits()


@attrs.define
class Served:
    """`paths`: of the requests that reached a handler. `bodies`: how many of them came with a body that was read;
    `uploaded`: the bytes of whole files."""

    port: int
    paths: list[str] = attrs.field(factory=list)
    bodies: int = 0
    uploaded: int = 0
    begun: int = 0  # of uploads
    uploads: anyio.Condition = attrs.field(factory=anyio.Condition)
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

    async def uploads_begun(self, many: int) -> None:
        with anyio.fail_after(60):
            async with self.uploads:
                while self.begun < many:
                    await self.uploads.wait()

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

        async def upload(request: Request) -> Response:
            async with self.uploads:
                self.begun += 1
                self.uploads.notify_all()
            await request.body.read_purpose()
            await request.body.read_filename()
            self.uploaded += sum([len(piece) async for piece in request.body.pieces()])
            return Response(200, b"{}")

        body = Body(64 * KIB, lambda values: values, dict, dict)
        route = partial(Route, id="served", tag="Served", about="", replies=())
        return [
            route(method="GET", path="/hello", handler=hello),
            route(method="GET", path="/large", handler=large),
            route(method="GET", path="/wait", handler=wait),
            route(method="POST", path="/take", handler=take, body=body),
            route(method="POST", path="/upload", handler=upload, form=Form({}, ()), session=True),
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
async def serving(
    pace: Timeouts,
    *,
    body_deadline: float = 60,
    body_silence: float = 10,
    grace: float = 20,
    room: ConnectionLimits = _ROOM,
    uploads: UploadReader | None = None,
) -> AsyncIterator[Served]:
    """Run a server. The origin ORIGIN may read its responses."""
    served = Served(pick_free())
    listening = listening_socket(served.port, LOOPBACK)
    listening.listen(1024)

    async def serve() -> None:
        app = _stack(served.routes(), BodyReader(body_deadline, 4096, body_silence), uploads or uploading())
        await serve_until(
            app, listening, served.stop.wait, grace_seconds=grace, timeouts=pace, limits=room, origins=_ORIGINS
        )
        served.stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            yield served
        finally:
            served.released.set()
            served.stop.set()


def uploading(memory: int = 1 << 20, *, of_caller: int = 4, of_wallet: int = 4, silence: float = 10) -> UploadReader:
    return UploadReader(BodyBudget(memory), TransferLimits(of_caller, of_wallet), 64 << 20, 4096, silence)


def _stack(routes: list[Route], bodies: BodyReader, uploads: UploadReader) -> ASGIApp:
    async def is_ready() -> bool:
        return True

    async def of_wallet(token: str) -> SessionRow | None:
        return SessionRow(token.encode(), None)

    budget = BodyBudget(1 << 20)
    services = DispatcherServices(
        is_ready,
        of_wallet,
        bodies,
        budget,
        uploads,
        BlockCache(Standing(Snapshot(1, b"", 1))),
    )
    # Identify callers by the forwarded header, as behind a proxy.
    proxies = frozenset({LOOPBACK})
    app = CallerLimits(Dispatcher(routes, services), TokenBuckets(1e9, 1e9), proxies)
    return RequestMiddleware(CorsMiddleware(app, _ORIGINS), _ORIGINS)
