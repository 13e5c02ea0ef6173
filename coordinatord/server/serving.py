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
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from starlette.types import ASGIApp

from coordinatord.api.cors import Origins
from coordinatord.server.connection import PIECE, Connection
from coordinatord.server.connections import Connections, Room
from coordinatord.server.pace import Pace

_LONGEST_HEAD: Final = 16 * 1024
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
    config.h11_max_incomplete_size = _LONGEST_HEAD
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")  # its own handler would print beside our log
    return config
