"""Run the API's HTTP server until it is stopped.

The server ends when `stop` returns. `serve_until` is shielded from cancellation, which would drop requests in flight.
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
from coordinatord.http.server.exchange import ServerState

# Maximum number of connections that wait to be accepted. The number is high, because the kernel resets further
# connections, and all providers reconnect at once after a restart.
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
    limits: ConnectionLimits = _DEFAULT_LIMITS,
    origins: Origins = _NO_ORIGINS,
) -> None:
    """Serve until `stop` returns, then let requests in flight finish within the grace period. `origins` are allowed to
    read responses that do not come from `app`."""
    server_state = ServerState(app, origins)
    connections = Connections(limits)
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:

            async def serve(connection: ClientConnection) -> None:
                with connections.track_connection(connection):
                    await connection.run(server_state)

            def admit_or_abort(connection: ClientConnection) -> None:
                if connections.admit(connection):
                    tasks.start_soon(serve, connection)
                else:
                    connection.abort()

            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                lambda: ClientConnection(timeouts, admit_or_abort), sock=listening, backlog=_BACKLOG
            )
            await stop()
            server.close()
            server_state.is_stopping = True
            await connections.close_all(grace_seconds)
            tasks.cancel_scope.cancel()


def listening_socket(port: int, host: str) -> socket.socket:
    """Return a socket that is bound to the port. Raise Fatal when the address cannot be bound, e.g. because another
    program uses the port.

    SO_REUSEPORT lets several processes share the port. The kernel distributes connections among them.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Fatal(f"PORT, BIND_HOST: {host}:{port} cannot be bound: {error.strerror or error}") from None
    return listening
