"""Listening socket of `svc serve`, which reserves file descriptors for purchases if many clients connect.

A high descriptor number means that many descriptors are in use. When half are in use, idle connections are closed
early. When only the reserve is left, new connections are closed at once.
"""

import socket
import sys
from typing import Any, Final

from hypercorn.config import Config, Sockets

_RESERVED_DESCRIPTORS: Final = 128  # for connections to the market, the ledger, files and the event loop
_KEEP_ALIVE_TIMEOUT_S: Final = 75.0
_CROWDED_KEEP_ALIVE_TIMEOUT_S: Final = 2.0


class ListeningConfig(Config):
    """Configuration of hypercorn that serves one socket.

    hypercorn keeps an idle connection for `keep_alive_timeout` seconds, even if the client has closed the connection.
    `ListeningSocket` shortens this time while many descriptors are in use.
    """

    keep_alive_timeout: float

    def __init__(self, listening: socket.socket) -> None:
        super().__init__()
        self.keep_alive_timeout = _KEEP_ALIVE_TIMEOUT_S
        self._listening = listening

    def create_sockets(self) -> Sockets:
        """Return a duplicate of the socket, because hypercorn closes the sockets that it serves."""
        sockets: list[socket.socket] = [ListeningSocket(self._listening, self)]
        return Sockets(sockets, [], []) if self.ssl_enabled else Sockets([], sockets, [])


class ListeningSocket(socket.socket):
    """Listening socket that closes a new connection when few descriptors are left.

    Without this limit, `accept` would fail once no descriptor is left. asyncio then logs up to a thousand tracebacks
    and starts as many timers, which can use all CPU time of the process.
    """

    def __init__(self, listening: socket.socket, config: ListeningConfig) -> None:
        super().__init__(fileno=listening.dup().detach())
        self.setblocking(False)
        self._config = config
        self._descriptor_limit = _connection_descriptor_limit()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        descriptor = connection.fileno()
        crowded = descriptor >= self._descriptor_limit // 2
        self._config.keep_alive_timeout = _CROWDED_KEEP_ALIVE_TIMEOUT_S if crowded else _KEEP_ALIVE_TIMEOUT_S
        if descriptor >= self._descriptor_limit:
            connection.close()
            raise BlockingIOError  # asyncio then waits for the next connection
        return connection, address


def _connection_descriptor_limit() -> int:
    """Return the lowest descriptor number at which a new connection is closed.

    A new descriptor gets the lowest free number, so a high number means that many descriptors are in use.
    """
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415 - missing on Windows

    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        sys.maxsize
        if soft_limit == resource.RLIM_INFINITY
        else soft_limit - min(_RESERVED_DESCRIPTORS, soft_limit // 2)
    )
