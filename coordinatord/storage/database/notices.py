"""The two notification channels that every process of a deployment follows through one listening connection.

    channel       entry                    meaning
    index_moved   BLOCK                    the index committed this block, and its rows of `events`
    outbox_moved  queued                   a relay waits for the relayer
                  ended RELAY              a relay has its final state
                  offered MODEL:PROVIDER   a job whose post is pending waits for a provider
                  batch BATCH              a batch was created or cancelled, or a worker moved it

PostgreSQL delivers entries in the order of the commits. Entries that are sent while the connection is lost are not
repeated. So every subscriber receives RESET after each connect, and then reads its tables.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.errors import DATABASE_ERRORS

INDEX_MOVED: Final = "index_moved"
OUTBOX_MOVED: Final = "outbox_moved"
RELAY_QUEUED: Final = "queued"
RELAY_ENDED: Final = "ended"
JOB_OFFERED: Final = "offered"
BATCH_MOVED: Final = "batch"
RESET: Final = "reset"  # delivered in place of a payload after each connect
HEARTBEAT_TIMEOUT_S: Final = 2.0
RECONNECT_PAUSE_S: Final = 0.5
_TOPICS: Final = (INDEX_MOVED, RELAY_QUEUED, RELAY_ENDED, JOB_OFFERED, BATCH_MOVED)

log = structlog.get_logger(__name__)


async def notify_outbox(connection: Connection, topic: str, payload: str = "") -> None:
    """Send an entry to all processes when the transaction commits."""
    await connection.execute("select pg_notify($1, $2)", OUTBOX_MOVED, f"{topic} {payload}".rstrip())


class Notices:
    """Delivers each entry to all subscribers of its topic. A topic is `index_moved` or one kind of outbox entry."""

    def __init__(self, heartbeat_s: float = 3.0) -> None:
        """`heartbeat_s` is the time between checks of the connection."""
        self._heartbeat_s = heartbeat_s
        self._subscribers: dict[str, set[Callable[[str], None]]] = {topic: set() for topic in _TOPICS}

    def deliver(self, channel: str, payload: str) -> None:
        """Pass a notice to its subscribers. Ignore topics that another release added."""
        topic = channel
        if channel == OUTBOX_MOVED:
            topic, _, payload = payload.partition(" ")
        for subscriber in tuple(self._subscribers.get(topic, ())):
            subscriber(payload)

    def reset(self) -> None:
        """Deliver RESET to every subscriber."""
        for topic in _TOPICS:
            for subscriber in tuple(self._subscribers[topic]):
                subscriber(RESET)

    def subscribe_always(self, topic: str, callback: Callable[[str], None]) -> None:
        """Call `callback(payload)` on each entry of the topic until the process ends. `callback` must not block."""
        self._subscribers[topic].add(callback)

    @asynccontextmanager
    async def subscribe(self, topic: str, callback: Callable[[str], None]) -> AsyncIterator[None]:
        """Call `callback(payload)` on each entry of the topic while the context is open. `callback` must not block."""
        self._subscribers[topic].add(callback)
        try:
            yield
        finally:
            self._subscribers[topic].discard(callback)

    async def listen(self, database: Database) -> None:
        """Listen on one connection, and reconnect after failures, until cancelled."""
        while True:
            try:
                await self._listen_once(database)
            except (Retryable, *DATABASE_ERRORS) as error:
                log.warning("notices lost", reason=str(error) or type(error).__name__)
            await anyio.sleep(RECONNECT_PAUSE_S)

    async def _listen_once(self, database: Database) -> None:
        connection = await database.connect()
        closed = anyio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            for channel in (INDEX_MOVED, OUTBOX_MOVED):
                await connection.add_listener(channel, lambda _c, _pid, ch, payload: self.deliver(ch, payload))
            self.reset()
            while not closed.is_set():
                with anyio.move_on_after(self._heartbeat_s):
                    await closed.wait()
                # A listening connection sends nothing, so only this query notices an unreachable server.
                await connection.fetchval("select 1", timeout=HEARTBEAT_TIMEOUT_S)
        finally:
            with anyio.move_on_after(2, shield=True), suppress(*DATABASE_ERRORS):
                await connection.close(timeout=1)
