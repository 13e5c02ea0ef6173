"""Limits on open connections, per caller and in total, and the choice of a connection to close.

An idle connection costs the client nothing, but costs the server a descriptor and some kilobytes. So at a limit, a new
connection replaces the connection that has been idle for longest. At the limit of a caller, only connections of
this caller are replaced. A connection that has received only part of a head still counts as idle. When no connection is
idle, the new connection is closed.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import nsmallest
from operator import itemgetter
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.http.caller_limits import rate_limit_network
from coordinatord.http.server.connection import ClientConnection

log = structlog.get_logger(__name__)

_MADE_ROOM_COUNTER: Final = metrics.connections_ended.labels("connection", "made_room")
_CANDIDATES_PER_SEARCH: Final = 256
_get_idle_since: Final = itemgetter(0)
_REFUSED_COUNTER: Final = metrics.connections_ended.labels("connection", "refused")


@attrs.frozen(slots=True)
class ConnectionLimits:
    """Maximum number of open connections, in total and per caller.

    A trusted proxy in `proxies` carries many callers. So the limit per caller does not apply to a proxy, and a proxy's
    connections are never closed to make room.
    """

    total: int = 8192
    per_caller: int = 512
    proxies: frozenset[str] = frozenset()


class Connections:
    """Open connections of the server, counted against the limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        # Caller of each open connection, or None for a connection of a proxy.
        self._open: dict[ClientConnection, str | None] = {}
        # Connections of each caller, oldest first. Of connections idle for equally long, the oldest is closed.
        self._by_caller: dict[str, dict[ClientConnection, None]] = {}
        # Connections that may be closed to make room, the longest idle last.
        self._longest_idle: list[tuple[float, ClientConnection]] = []
        self._all_closed = anyio.Event()

    def admit(self, connection: ClientConnection) -> bool:
        """Count the connection if the limits allow it, closing an idle connection if needed. Return False otherwise.

        The connection counts until the block of `track_connection` ends or the connection is closed to make room.
        """
        caller = None if connection.address in self._limits.proxies else rate_limit_network(connection.address)
        if not self._make_room(caller):
            _REFUSED_COUNTER.inc()
            return False
        self._open[connection] = caller
        if caller is not None:
            self._by_caller.setdefault(caller, {})[connection] = None
        return True

    @contextmanager
    def track_connection(self, connection: ClientConnection) -> Iterator[None]:
        """Stop counting an admitted connection when the block ends."""
        try:
            yield
        finally:
            self._forget(connection)

    async def close_all(self, grace_seconds: float) -> None:
        """Close idle connections, wait up to `grace_seconds` for open requests, then abort the others."""
        for connection in [*self._open]:
            connection.close_if_idle()
        with anyio.move_on_after(grace_seconds):
            while self._open:
                self._all_closed = anyio.Event()
                await self._all_closed.wait()
        if self._open:
            log.warning("requests cut off", connections=len(self._open), grace_seconds=grace_seconds)
        for connection in [*self._open]:
            connection.abort()

    def _make_room(self, caller: str | None) -> bool:
        own = self._by_caller.get(caller, ()) if caller is not None else ()
        if len(own) >= self._limits.per_caller:
            idle = _idle_connections(own)
            return bool(idle) and self._close_connection(min(idle, key=_get_idle_since)[1])
        return len(self._open) < self._limits.total or self._close_longest_idle()

    def _close_longest_idle(self) -> bool:
        """Close the connection that has been idle for longest. Return False if no connection is idle.

        The search visits every connection, so each search also collects candidates for the next calls.
        """
        for _ in range(2):
            while self._longest_idle:
                since, connection = self._longest_idle.pop()
                if connection in self._open and connection.idle_since == since:
                    return self._close_connection(connection)
            callers = (connection for connection, caller in self._open.items() if caller is not None)
            self._longest_idle = nsmallest(_CANDIDATES_PER_SEARCH, _idle_connections(callers), key=_get_idle_since)[
                ::-1
            ]
        return False

    def _close_connection(self, connection: ClientConnection) -> bool:
        self._forget(connection)
        connection.close_to_make_room()
        _MADE_ROOM_COUNTER.inc()
        return True

    def _forget(self, connection: ClientConnection) -> None:
        if connection not in self._open:
            # The connection was already closed to make room.
            return
        caller = self._open.pop(connection)
        if caller is not None:
            own = self._by_caller[caller]
            del own[connection]
            if not own:
                del self._by_caller[caller]
        if not self._open:
            self._all_closed.set()


def _idle_connections(connections: Iterable[ClientConnection]) -> list[tuple[float, ClientConnection]]:
    return [(each.idle_since, each) for each in connections if each.idle_since is not None]
