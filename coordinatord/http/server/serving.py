"""Run the API's HTTP server until it is stopped.

`stop` ends the server. It is shielded from cancellation, because cancelling the scope around `serve_until` would drop
requests in flight.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from common.daemon.asgi import ASGIApp
from common.daemon.process import Fatal
from coordinatord.http.cors import Origins
from coordinatord.http.server.connection import ClientConnection, Timeouts
from coordinatord.http.server.connections import ConnectionLimits, Connections
from coordinatord.http.server.exchange import Service

# After a restart all providers reconnect at once. Connections beyond this number are reset.
_BACKLOG: Final = 4096
_TIMEOUTS: Final = Timeouts()
_DEFAULT_LIMITS: Final = ConnectionLimits()
_NO_ORIGINS: Final = Origins()


async def serve_until(
    app: ASGIApp,
    listening: socket.socket,
    stop: Callable[[], Awaitable[None]],
    *,
    grace_seconds: float,
    timeouts: Timeouts = _TIMEOUTS,
    room: ConnectionLimits = _DEFAULT_LIMITS,
    origins: Origins = _NO_ORIGINS,
) -> None:
    """Serve until `stop` returns, then finish requests in flight or wait for the grace period. `origins` may read
    responses that `app` does not make."""
    service = Service(app, origins)
    connections = Connections(room)
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:

            async def serve(connection: ClientConnection) -> None:
                with connections.holding(connection):
                    await connection.run(service)

            def opened(connection: ClientConnection) -> None:
                if connections.admit(connection):
                    tasks.start_soon(serve, connection)
                else:
                    connection.abort()

            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                lambda: ClientConnection(timeouts, opened), sock=listening, backlog=_BACKLOG
            )
            await stop()
            server.close()
            service.stopping = True
            await connections.finish(grace_seconds)
            tasks.cancel_scope.cancel()


def listening_socket(port: int, host: str) -> socket.socket:
    """Bind the listening socket. Raise Fatal when the port is taken, before anything else starts.

    SO_REUSEPORT lets several processes share the port. The kernel distributes connections among them.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Fatal(f"PORT, BIND_HOST: {host}:{port}: {error.strerror or error}") from None
    return listening
