"""Limits on open connections, per caller and in total, and the choice of a connection to close.

An idle connection is free for the client but costs the server a descriptor and some kilobytes. So at a limit, a new
connection replaces the connection that has been idle for longest. At the caller's limit, only connections of that
caller are replaced. A partial head does not count as a request. When no connection is idle, the new one is closed.
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
from coordinatord.http.caller_limits import network_of
from coordinatord.http.server.connection import ClientConnection

log = structlog.get_logger(__name__)

_MADE_ROOM: Final = metrics.connections_ended.labels("connection", "made_room")
_CANDIDATES_PER_SEARCH: Final = 256
_SINCE: Final = itemgetter(0)
_REFUSED: Final = metrics.connections_ended.labels("connection", "refused")


@attrs.frozen(slots=True)
class ConnectionLimits:
    """Limits: `total` connections, and `per_caller` for each caller. A trusted proxy carries many callers, so the
    limit per caller does not apply to it, and its connections are never closed for others."""

    total: int = 8192
    per_caller: int = 512
    proxies: frozenset[str] = frozenset()


class Connections:
    def __init__(self, room: ConnectionLimits) -> None:
        self._room = room
        # With the caller, or None for a proxy.
        self._open: dict[ClientConnection, str | None] = {}
        # In order of arrival, which breaks ties.
        self._of: dict[str, dict[ClientConnection, None]] = {}
        # Some idle connections, oldest last.
        self._oldest: list[tuple[float, ClientConnection]] = []
        self._all_gone = anyio.Event()

    def admit(self, connection: ClientConnection) -> bool:
        """Return True when there is room for the connection or room was made. It counts until `holding` exits."""
        caller = None if connection.address in self._room.proxies else network_of(connection.address)
        if not self._has_room(caller):
            _REFUSED.inc()
            return False
        self._open[connection] = caller
        if caller is not None:
            self._of.setdefault(caller, {})[connection] = None
        return True

    @contextmanager
    def holding(self, connection: ClientConnection) -> Iterator[None]:
        try:
            yield
        finally:
            self._forget(connection)

    async def finish(self, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` for requests in flight, then abort the remaining connections."""
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

    def _has_room(self, caller: str | None) -> bool:
        own = self._of.get(caller, ()) if caller is not None else ()
        if len(own) >= self._room.per_caller:
            idle = _without_request(own)
            return bool(idle) and self._end(min(idle, key=_SINCE)[1])
        return len(self._open) < self._room.total or self._end_oldest()

    def _end_oldest(self) -> bool:
        """Close the oldest idle connection. The search visits every connection, so it collects several candidates at
        a time."""
        for _ in range(2):
            while self._oldest:
                since, connection = self._oldest.pop()
                if connection in self._open and connection.idle_since == since:
                    return self._end(connection)
            callers = (connection for connection, caller in self._open.items() if caller is not None)
            self._oldest = nsmallest(_CANDIDATES_PER_SEARCH, _without_request(callers), key=_SINCE)[::-1]
        return False

    def _end(self, connection: ClientConnection) -> bool:
        self._forget(connection)
        connection.give_way()
        _MADE_ROOM.inc()
        return True

    def _forget(self, connection: ClientConnection) -> None:
        if connection not in self._open:
            # Already closed to make room.
            return
        caller = self._open.pop(connection)
        if caller is not None:
            own = self._of[caller]
            del own[connection]
            if not own:
                del self._of[caller]
        if not self._open:
            self._all_gone.set()


def _without_request(connections: Iterable[ClientConnection]) -> list[tuple[float, ClientConnection]]:
    return [(one.idle_since, one) for one in connections if one.idle_since is not None]
