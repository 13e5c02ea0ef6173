"""Hypercorn's HTTP over connections of our own, served until told to stop.

It is stopped by its own trigger and shielded from cancellation: cancelling the scope round `serve_until` would drop
requests in flight.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import structlog
from anyio.abc import SocketStream, TaskStatus
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from prometheus_client import generate_latest
from starlette.types import ASGIApp

from common.wire import limits
from coordinatord.base.errors import Fatal
from coordinatord.base.metrics import REGISTRY
from coordinatord.http.middleware import Origins
from coordinatord.server.connection import PIECE, Connection, Pace
from coordinatord.server.connections import Connections, Room

_BACKLOG: Final = 4096  # after a restart all providers come back at once; beyond it connections are reset
_PACE: Final = Pace()
_ROOM: Final = Room()
_NO_ORIGINS: Final = Origins()


async def serve_until(
    app: ASGIApp,
    listening: socket.socket,
    stop: Callable[[], Awaitable[None]],
    *,
    grace_seconds: float,
    pace: Pace = _PACE,
    room: Room = _ROOM,
    origins: Origins = _NO_ORIGINS,
) -> None:
    """Returns when `stop` has returned and the requests then in flight are done, or the grace is over. `origins` may
    read what is answered before `app` hears of a request."""
    config = _hypercorn_config()
    wrapped: Any = app  # hypercorn has its own types of the same shapes
    wrapped = ASGIWrapper(wrapped)
    context = WorkerContext(None)
    connections = Connections(room)
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:

            async def serve(connection: Connection) -> None:
                with connections.holding(connection):
                    await connection.run(wrapped, config, context, origins)

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connection = Connection(pace, reader, writer)
                if connections.admit(connection):
                    tasks.start_soon(serve, connection)
                else:
                    connection.abort()

            server = await asyncio.start_server(connected, sock=listening, backlog=_BACKLOG, limit=PIECE)
            await stop()
            server.close()
            await context.terminated.set()
            await connections.finish(grace_seconds)
            tasks.cancel_scope.cancel()


def _hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.keep_alive_max_requests = 1_000_000  # clients are limited by caller, not by connection
    config.h11_max_incomplete_size = limits.HEAD_BYTES
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")  # its own handler would print beside our log
    return config


# The socket that this process takes connections from.


def listening_socket(port: int, host: str = "0.0.0.0") -> socket.socket:  # noqa: S104 - the specification says so
    """Bound, so that a port that is taken (Fatal) is known before anything else starts. Several processes may share it
    (SO_REUSEPORT); the kernel shares connections out among them."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except OSError as trouble:
        listening.close()
        raise Fatal(f"PORT: {port}: {trouble.strerror}") from None
    return listening


# /metrics on a port of its own: it is for operators, not for callers.

log = structlog.get_logger(__name__)

_LONGEST_METRICS_HEAD = 8192
_PATIENCE = 5.0


async def serve_metrics(
    host: str, port: int, refresh: Callable[[], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled; started when the port is taken, Fatal when it cannot be. `refresh` sets what is only worth
    knowing when somebody looks."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_PATIENCE):
                try:
                    await _answer(stream, refresh)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as trouble:
        raise Fatal(f"METRICS_HOST, METRICS_PORT: {host}:{port}: {trouble.strerror}") from None
    log.info("metrics served", host=host, port=port)
    task_status.started()
    await listener.serve(answer)


async def _answer(stream: SocketStream, refresh: Callable[[], None]) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive(4096)
        if len(head) > _LONGEST_METRICS_HEAD:
            return
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method in (b"GET", b"HEAD") and path == b"/metrics":
        refresh()
        status, body = b"200 OK", generate_latest(REGISTRY)
    else:
        status, body = b"404 Not Found", b"only GET /metrics\n"
    length = str(len(body)).encode()
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: text/plain; version=0.0.4; charset=utf-8",
        b"content-length: " + length,
        b"connection: close",
    ]
    await stream.send(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
