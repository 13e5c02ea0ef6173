"""Liveness of providers: a provider is live for a model while its last poll is recent.

A poll with the same free slots as the last stored poll, less than a quarter of the liveness time later, is not stored
at once. `run` stores the latest such poll, with the time of its arrival, before the stored poll expires. So ten
thousand pollers cost a few writes a second, and liveness stays exact.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import anyio
import structlog

from coordinatord.api.book import liveness_sql
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.liveness_sql import SeenPoll
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection

log = structlog.get_logger(__name__)

_WRITES_PER_LIVENESS_TIME: Final = 4
_MAX_REMEMBERED_POLLS: Final = 100_000


class LivenessRecorder:
    """Stores the polls of providers. Call `record_poll` and `keep_live` from any task of one event loop, in which `run`
    must be running."""

    def __init__(self, database: Database, liveness_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._writes = BatchedReads[SeenPoll, None](database.prepared_connection(), self._store_polls)
        self._interval_s = liveness_ms / 1000 / _WRITES_PER_LIVENESS_TIME
        self._clock = clock
        # Free slots and time of each provider's last stored poll, and of its latest poll that is not stored yet.
        self._stored: dict[PollKey, tuple[int, float]] = {}
        self._unstored: dict[PollKey, tuple[int, float]] = {}
        self._waiting_free_slots: dict[PollKey, list[int]] = {}  # free slots of waiting polls

    async def record_poll(self, poller: PollKey, free_slots: int) -> None:
        """Record a poll. Return once it is stored or scheduled to be stored before the previous poll expires."""
        now = self._clock()
        last_free, stored_at = self._stored.get(poller, (-1, 0.0))
        if last_free == free_slots and now - stored_at < self._interval_s:
            self._unstored[poller] = (free_slots, now)
            return
        self._unstored.pop(poller, None)
        await self._writes.get(SeenPoll(poller.provider_id, poller.model_id, free_slots, now))
        if len(self._stored) >= _MAX_REMEMBERED_POLLS:
            self._stored.clear()
        self._stored[poller] = (free_slots, now)

    @contextmanager
    def keep_live(self, poller: PollKey, free_slots: int) -> Iterator[None]:
        """Keep the provider live while the block runs."""
        self._waiting_free_slots.setdefault(poller, []).append(free_slots)
        try:
            yield
        finally:
            polls = self._waiting_free_slots[poller]
            polls.remove(free_slots)
            if not polls:
                del self._waiting_free_slots[poller]

    async def run(self) -> NoReturn:
        """Store scheduled polls and waiting polls until cancelled."""
        while True:
            await anyio.sleep(self._interval_s)
            now = self._clock()
            self._unstored |= {poller: (max(numbers), now) for poller, numbers in self._waiting_free_slots.items()}
            await self.store_delayed_polls()

    async def store_delayed_polls(self) -> None:
        """Store every poll that is not stored yet, with the time of its arrival."""
        polls, self._unstored = self._unstored, {}
        if not polls:
            return
        seen = [
            SeenPoll(poller.provider_id, poller.model_id, free_slots, at) for poller, (free_slots, at) in polls.items()
        ]
        try:
            async with self._database.connection() as connection:
                await self._store_polls(connection, seen)
        except Retryable as error:
            log.warning("polls not stored", reason=str(error))
            return
        self._stored |= {poller: last for poller, last in polls.items() if poller in self._stored}

    async def _store_polls(
        self, connection: "PreparedConnection | Connection", polls: list[SeenPoll]
    ) -> dict[SeenPoll, None]:
        now = self._clock()
        await liveness_sql.store_polls(connection, polls, [max(now - poll.polled_at, 0.0) for poll in polls])
        return dict.fromkeys(polls)
