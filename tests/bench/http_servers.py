"""Servers of the HTTP benchmarks, each in a separate process: `python -m tests.bench.http_servers name`."""

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
from hypercorn.asyncio import serve as serve_by_hypercorn
from hypercorn.config import Config as HypercornConfig
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route as StarletteRoute

from common.daemon.asgi import ASGIApp
from coordinatord.api.book.liveness import LivenessRecorder
from coordinatord.api.book.polls import PollService
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.routes import BookRoutes
from coordinatord.api.orders.routes import OrderRoutes
from coordinatord.api.sessions.sessions import SessionCache, hash_token
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.bodies import BodyBudget, BodyReader
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets
from coordinatord.http.dispatch import Dispatcher, DispatcherServices
from coordinatord.http.middleware import RequestMiddleware
from coordinatord.http.response_cache import BlockCache, IndexPosition
from coordinatord.http.responses import Response
from coordinatord.http.routing import Request, Route
from coordinatord.http.server.serving import listening_socket, serve_until
from coordinatord.http.uploads import TransferLimits, UploadReader
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.support.fakes.index_position import Standing

HELLO = b'{"hello":"world"}'


def starlette_hello() -> ASGIApp:
    async def hello(_: StarletteRequest) -> StarletteResponse:
        return StarletteResponse(HELLO, media_type="application/json")

    return Starlette(routes=[StarletteRoute("/", hello)])


async def stock_hypercorn(listening: socket.socket) -> None:
    """Serve the same hello with unmodified hypercorn."""
    config = HypercornConfig()
    config.bind = [f"fd://{listening.fileno()}"]
    wrapped: Any = starlette_hello()  # hypercorn has separate types of the same shapes
    await serve_by_hypercorn(wrapped, config, shutdown_trigger=anyio.sleep_forever)


_UNLIMITED: Final = TokenBuckets(1e9, 1e9)


async def no_session(_: str) -> SessionRow | None:
    return None


def our_stack(
    routes: list[Route],
    position: IndexPosition,
    find_session: Callable[[str], Awaitable[SessionRow | None]] = no_session,
    buckets: TokenBuckets = _UNLIMITED,
) -> ASGIApp:
    """Build every layer that a request of the coordinator passes."""

    async def is_ready() -> bool:
        return True

    budget, transfers = BodyBudget(1 << 28), TransferLimits(64, 64)
    uploads = UploadReader(BodyBudget(1 << 28), transfers, 1 << 28, 4096, 60)
    services = DispatcherServices(is_ready, find_session, BodyReader(60, 4096), budget, uploads, BlockCache(position))
    return RequestMiddleware(CallerLimits(Dispatcher(routes, services), buckets, frozenset()))


def stack_hello() -> ASGIApp:
    async def hello(_: Request) -> Response:
        return Response(200, HELLO)

    nowhere = Standing(Snapshot(0, b"", 0))
    route = partial(Route, method="GET", id="hello", tag="Hello", about="", replies=())
    return our_stack([route(path="/", handler=hello)], nowhere)


async def _serve(name: str, port: int) -> None:
    unused: Any = None  # dependencies of routes that no benchmark requests
    listening = listening_socket(port, "127.0.0.1")
    listening.listen(4096)  # early connections wait for the server to start
    print("listening", flush=True)

    async def serve(app: ASGIApp) -> None:
        await serve_until(app, listening, anyio.sleep_forever, grace_seconds=1)

    if name == "hypercorn":
        await stock_hypercorn(listening)
    elif name == "points":
        async with open_database(os.environ["DATABASE_URL"], max_size=8) as database:
            reads = IndexReads.from_databases(database)
            routes = OrderRoutes(unused, unused, unused, unused, reads, unused).routes()
            await serve(our_stack(routes, reads.position))
    elif name == "polls":
        async with open_database(os.environ["DATABASE_URL"], max_size=8) as database:
            reads = IndexReads.from_databases(database)
            # No job is leased here, so funds are never read.
            unused: Any = None
            polls = PollService(
                database,
                unused,
                lease_ms=20_000,
                liveness=LivenessRecorder(database, 15_000),
                waiting_polls=unused,
                connection_limits=unused,
                offers=unused,
            )
            routes = BookRoutes(reads, polls, unused, _UNLIMITED).routes()

            sessions = SessionCache(database)

            async def find_session(token: str) -> SessionRow | None:
                return await sessions.find(hash_token(token))

            await serve(our_stack(routes, reads.position, find_session))
    else:
        await serve({"starlette": starlette_hello, "stack": stack_hello}[name]())


def main() -> None:
    anyio.run(_serve, sys.argv[1], int(sys.argv[2]), backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
