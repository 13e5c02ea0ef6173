"""The connections that are open: how many there may be, of one caller and in all, and which of them gives way.

A connection without a request costs its holder nothing and us a descriptor and some kilobytes, so that a stranger could
hold as many as we take. A new one takes the place of the one that has been without a request for longest: its own
caller's where that has as many as it may, anybody's where there is no more room at all. Half a head is no request.
Where every connection has one, the new one is closed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import attrs
import structlog

from coordinatord import metrics
from coordinatord.api.callers import network_of
from coordinatord.server.connection import Connection

log = structlog.get_logger(__name__)

_MADE_ROOM: Final = metrics.http_connections_ended.labels("made_room")
_REFUSED: Final = metrics.http_connections_ended.labels("refused")


@attrs.frozen(slots=True)
class Room:
    """`most` connections in all, `most_of_one` of them a caller's. A proxy of ours carries many callers: it may have as
    many as there is room for, and none of its connections gives way to another."""

    most: int = 8192
    most_of_one: int = 512
    proxies: frozenset[str] = frozenset()


class Connections:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._open: dict[Connection, str | None] = {}  # with the caller; None is a proxy
        self._counts: dict[str, int] = {}
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # of callers, those that became so first in front
        self._idle_of: dict[str, OrderedDict[Connection, None]] = {}
        self._all_gone = anyio.Event()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for it, or room could be made. Then it counts until it is `holding` no more."""
        caller = None if connection.address in self._room.proxies else network_of(connection.address)
        if not self._has_room(caller):
            _REFUSED.inc()
            return False
        self._open[connection] = caller
        if caller is not None:
            self._counts[caller] = self._counts.get(caller, 0) + 1
            self.idle_changed(connection, idle=True)
        metrics.http_connections.set(len(self._open))
        return True

    @contextmanager
    def holding(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        finally:
            self._forget(connection)

    def idle_changed(self, connection: Connection, *, idle: bool) -> None:
        caller = self._open.get(connection)
        if caller is None:  # a proxy's, or one that gave way
            return
        if idle:
            self._idle[connection] = None
            self._idle_of.setdefault(caller, OrderedDict())[connection] = None
        elif connection in self._idle:
            self._not_idle(connection, caller)

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
        room = self._room
        if caller is not None and self._counts.get(caller, 0) >= room.most_of_one:
            return self._make_room(self._idle_of.get(caller))
        return len(self._open) < room.most or self._make_room(self._idle)

    def _make_room(self, idle: OrderedDict[Connection, None] | None) -> bool:
        if not idle:
            return False
        oldest = next(iter(idle))
        self._forget(oldest)
        oldest.give_way()
        _MADE_ROOM.inc()
        return True

    def _forget(self, connection: Connection) -> None:
        if connection not in self._open:
            return  # it gave way
        caller = self._open.pop(connection)
        if caller is not None:
            if connection in self._idle:
                self._not_idle(connection, caller)
            left = self._counts.pop(caller) - 1
            if left:
                self._counts[caller] = left
        metrics.http_connections.set(len(self._open))
        if not self._open:
            self._all_gone.set()

    def _not_idle(self, connection: Connection, caller: str) -> None:
        del self._idle[connection]
        of_caller = self._idle_of[caller]
        del of_caller[connection]
        if not of_caller:
            del self._idle_of[caller]
