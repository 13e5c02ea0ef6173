"""Hypercorn's HTTP over connections of our own, served until told to stop.

It is stopped by its own trigger and shielded from cancellation: cancelling the scope round `serve_until` would drop
requests in flight.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import structlog
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from starlette.types import ASGIApp

from coordinatord.server.connection import PIECE, Connection
from coordinatord.server.pace import Pace

log = structlog.get_logger(__name__)

_LONGEST_HEAD: Final = 16 * 1024
_BACKLOG: Final = 4096  # after a restart all providers come back at once; beyond it connections are reset
_PACE: Final = Pace()


async def serve_until(
    app: ASGIApp,
    listening: socket.socket,
    stop: Callable[[], Awaitable[None]],
    *,
    grace_seconds: float,
    pace: Pace = _PACE,
) -> None:
    """Returns when `stop` has returned and the requests then in flight are done, or the grace is over."""
    config = _hypercorn_config()
    wrapped: Any = app  # hypercorn has its own types of the same shapes
    wrapped = ASGIWrapper(wrapped)
    context = WorkerContext(None)
    connections = _Connections()
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:

            async def serve(connection: Connection) -> None:
                with connections.holding(connection):
                    await connection.run(wrapped, config, context)

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.start_soon(serve, Connection(pace, reader, writer))

            server = await asyncio.start_server(connected, sock=listening, backlog=_BACKLOG, limit=PIECE)
            await stop()
            server.close()
            await context.terminated.set()
            await connections.finish(grace_seconds)
            tasks.cancel_scope.cancel()


class _Connections:
    """Those that are open."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._all_gone = anyio.Event()

    @contextmanager
    def holding(self, connection: Connection) -> Iterator[None]:
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            if not self._open:
                self._all_gone.set()

    async def finish(self, grace_seconds: float) -> None:
        """Wait for requests in flight, then end what is left: the slowest client does not decide when we stop."""
        for connection in [*self._open]:
            connection.finish()
        with anyio.move_on_after(grace_seconds):
            while self._open:
                self._all_gone = anyio.Event()
                await self._all_gone.wait()
        if self._open:
            log.warning("requests cut off", connections=len(self._open), grace_seconds=grace_seconds)
        for connection in [*self._open]:
            connection.abort()


def _hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.keep_alive_max_requests = 1_000_000  # clients are limited by caller, not by connection
    config.h11_max_incomplete_size = _LONGEST_HEAD
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")  # its own handler would print beside our log
    return config
