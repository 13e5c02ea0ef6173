"""The connections that are open: how many there may be, of one caller and in all, and which of them gives way.

A connection without a request costs its holder nothing and us a descriptor and some kilobytes, so that a stranger could
hold as many as we take. A new one takes the place of the one that has been without a request for longest: its own
caller's where that has as many as it may, anybody's where there is no more room at all. Half a head is no request.
Where every connection has one, the new one is closed.
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

_MADE_ROOM: Final = metrics.http_connections_ended.labels("made_room")
_AT_A_TIME: Final = 256
_SINCE: Final = itemgetter(0)
_REFUSED: Final = metrics.http_connections_ended.labels("refused")


@attrs.frozen(slots=True)
class ConnectionLimits:
    """`most` connections in all, `most_of_one` of them a caller's. A proxy of ours carries many callers: it may have as
    many as there is room for, and none of its connections gives way to another."""

    most: int = 8192
    most_of_one: int = 512
    proxies: frozenset[str] = frozenset()


class Connections:
    def __init__(self, room: ConnectionLimits) -> None:
        self._room = room
        self._open: dict[ClientConnection, str | None] = {}  # with the caller; None is a proxy
        self._of: dict[str, dict[ClientConnection, None]] = {}  # in their order, which decides between equal times
        self._oldest: list[tuple[float, ClientConnection]] = []  # some of those without a request, the oldest last
        self._all_gone = anyio.Event()

    def admit(self, connection: ClientConnection) -> bool:
        """True when there is room for it, or room could be made. Then it counts until it is `holding` no more."""
        caller = None if connection.address in self._room.proxies else network_of(connection.address)
        if not self._has_room(caller):
            _REFUSED.inc()
            return False
        self._open[connection] = caller
        if caller is not None:
            self._of.setdefault(caller, {})[connection] = None
        metrics.http_connections.set(len(self._open))
        return True

    @contextmanager
    def holding(self, connection: ClientConnection) -> Iterator[None]:
        try:
            yield
        finally:
            self._forget(connection)

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

    def _has_room(self, caller: str | None) -> bool:
        own = self._of.get(caller, ()) if caller is not None else ()
        if len(own) >= self._room.most_of_one:
            idle = _without_request(own)
            return bool(idle) and self._end(min(idle, key=_SINCE)[1])
        return len(self._open) < self._room.most or self._end_oldest()

    def _end_oldest(self) -> bool:
        """Of all. To find it takes a look at each, so that some are found at a time."""
        for _ in range(2):
            while self._oldest:
                since, connection = self._oldest.pop()
                if connection in self._open and connection.idle_since == since:
                    return self._end(connection)
            callers = (connection for connection, caller in self._open.items() if caller is not None)
            self._oldest = nsmallest(_AT_A_TIME, _without_request(callers), key=_SINCE)[::-1]
        return False

    def _end(self, connection: ClientConnection) -> bool:
        self._forget(connection)
        connection.give_way()
        _MADE_ROOM.inc()
        return True

    def _forget(self, connection: ClientConnection) -> None:
        if connection not in self._open:
            return  # it gave way
        caller = self._open.pop(connection)
        if caller is not None:
            own = self._of[caller]
            del own[connection]
            if not own:
                del self._of[caller]
        metrics.http_connections.set(len(self._open))
        if not self._open:
            self._all_gone.set()


def _without_request(connections: Iterable[ClientConnection]) -> list[tuple[float, ClientConnection]]:
    return [(one.idle_since, one) for one in connections if one.idle_since is not None]
