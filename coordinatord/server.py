"""Hypercorn, served until told to stop.

It is stopped by its own trigger and shielded from cancellation: cancelling the scope round `serve` would drop requests
in flight. Several processes may listen on one port (SO_REUSEPORT); the kernel shares connections out among them.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from hypercorn.asyncio import serve
from hypercorn.config import Config as HypercornConfig
from starlette.types import ASGIApp

_LONGEST_HEAD: Final = 16 * 1024
_IDLE: Final = 30.0  # seconds that a connection is kept without a request


def listening_socket(port: int, host: str = "0.0.0.0") -> socket.socket:  # noqa: S104 - the specification says so
    """Bound, so that a port that is taken is known before anything else starts."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((host, port))
    return listening


async def serve_until(
    app: ASGIApp, listening: socket.socket, stop: Callable[[], Awaitable[None]], *, grace_seconds: int
) -> None:
    """Returns when `stop` has returned and the requests then in flight are done, or the grace is over."""
    config = HypercornConfig()
    config.bind = [f"fd://{listening.fileno()}"]
    config.backlog = 1024
    config.graceful_timeout = grace_seconds
    config.shutdown_timeout = grace_seconds
    config.keep_alive_timeout = _IDLE
    config.keep_alive_max_requests = 1_000_000  # clients are limited by caller, not by connection
    config.h11_max_incomplete_size = _LONGEST_HEAD
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn")  # its own handler would print beside our log

    async def serving() -> None:
        await serve(app, config, shutdown_trigger=stop)  # type: ignore[arg-type] # its own type of ASGI applications

    # A task of its own: asyncio.TaskGroup, which hypercorn ends by an exception, leaves a cancellation pending on the
    # task that ran it (CPython 3.11), and that would be taken for ours.
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as own:
            own.start_soon(serving)
