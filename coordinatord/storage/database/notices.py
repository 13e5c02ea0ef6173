"""LISTEN/NOTIFY for one process: one connection, any number of waiters.

A notice is only a hint to look at the table: waiters look on waking and by a slow poll, so a lost notice (a
reconnect, a failover) costs time and nothing else.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.errors import DATABASE_ERRORS

log = structlog.get_logger(__name__)

RELAY_QUEUED = "relay_queued"  # a relay waits for the relayer
RELAY_ENDED = "relay_ended"  # payload: the relay's id
INDEX_MOVED = "index_moved"  # payload: the block number
JOB_OFFERED = "job_offered"  # payload: model and designated provider of a job whose post is under way
BATCH_DUE = "batch_due"  # a batch was created or cancelled
BATCH_MOVED = "batch_moved"  # payload: the id of a batch whose row or lines changed
WEBHOOKS_DUE = "webhooks_due"  # a message waits for an endpoint, or a change of a batch is to be told
_HEARTBEAT_TIMEOUT_S: Final = 2.0
CHANNELS = (RELAY_QUEUED, RELAY_ENDED, INDEX_MOVED, JOB_OFFERED, BATCH_DUE, BATCH_MOVED, WEBHOOKS_DUE)


class Notices:
    """Delivers each notice to all who subscribed to its channel."""

    def __init__(self, heartbeat: float = 3.0) -> None:
        """`heartbeat`: seconds after which the connection is tried."""
        self._heartbeat = heartbeat
        self._subscribers: dict[str, set[Callable[[str], None]]] = {channel: set() for channel in CHANNELS}

    def deliver(self, channel: str, payload: str) -> None:
        for subscriber in tuple(self._subscribers[channel]):
            subscriber(payload)

    def always(self, channel: str, heard: Callable[[str], None]) -> None:
        """Call `heard(payload)` on each notice, for as long as there are any; it must not block."""
        self._subscribers[channel].add(heard)

    @asynccontextmanager
    async def subscribe(self, channel: str, heard: Callable[[str], None]) -> AsyncIterator[None]:
        """Call `heard(payload)` on each notice while the block runs; it must not block."""
        self._subscribers[channel].add(heard)
        try:
            yield
        finally:
            self._subscribers[channel].discard(heard)

    async def listen(self, database: Database) -> None:
        """Keep a listening connection until cancelled."""
        while True:
            try:
                await self._one_connection(database)
            except (Retryable, *DATABASE_ERRORS) as error:
                log.warning("notices lost", reason=str(error) or type(error).__name__)
            await anyio.sleep(0.5)

    async def _one_connection(self, database: Database) -> None:
        connection = await database.connect()
        closed = anyio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            for channel in CHANNELS:
                await connection.add_listener(channel, lambda _c, _pid, ch, payload: self.deliver(ch, payload))
            while not closed.is_set():
                with anyio.move_on_after(self._heartbeat):
                    await closed.wait()
                # A connection that only listens never learns that the other side is gone without a word.
                await connection.fetchval("select 1", timeout=_HEARTBEAT_TIMEOUT_S)
        finally:
            with anyio.move_on_after(2, shield=True), suppress(*DATABASE_ERRORS):
                await connection.close(timeout=1)
