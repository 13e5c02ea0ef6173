"""Stream of a batch: the batch as GET returns it, whenever it has changed.

No event changes a batch, because its counts are computed from its jobs. So the stream reads it again after an event of
one of its owner's jobs, after an entry of the outbox's log about it, and with each heartbeat.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs

from coordinatord.api.batches.batches import FoundBatch
from coordinatord.api.events.events_sql import EventFilter
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import Listener
from coordinatord.api.events.messages import HEARTBEAT, farewell, message, opening
from coordinatord.api.events.places import Places
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.notices import BATCH_MOVED, RESET, Notices

MIN_PAUSE_S: Final = 1.0  # between two reads of a batch
MAX_PAUSE_S: Final = 5.0
PAUSE_FACTOR: Final = 10.0  # pause after a read, as a multiple of its duration

Read = Callable[[], Awaitable[FoundBatch | None]]
Data = Callable[[FoundBatch], bytes]


@attrs.frozen(slots=True)
class BatchEvents:
    hub: EventHub
    places: Places
    notices: Notices

    @asynccontextmanager
    async def following(
        self, owner: bytes, batch_id: str, caller: str, read: Read, data: Data
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the bytes of a stream of the batch, until the batch is gone. `data` returns the JSON of a batch that
        was read. Raise Retryable when the caller has no place left."""
        with self.places.held(caller, "stream"):
            async with self.hub.following(EventFilter(owner=owner), None) as (listener, _):

                def moved(which: str) -> None:
                    if which in (batch_id, RESET):
                        listener.beat()

                async with self.notices.subscribe(BATCH_MOVED, moved):
                    yield self._stream(listener, read, data)

    async def _stream(self, listener: Listener, read: Read, data: Data) -> AsyncIterator[bytes]:
        yield opening(self.hub.newest)
        seen, beaten = None, False
        while True:
            newest, began = self.hub.newest, anyio.current_time()
            try:
                found = await read()
            except Retryable:  # the index is being rebuilt, for example
                found = seen
            if found is None and seen is not None:
                return
            if found is not None and (seen is None or found.batch != seen.batch):
                seen = found
                yield message("batch", data(found), newest)
            elif beaten:
                yield HEARTBEAT
            await anyio.sleep(min(max(MIN_PAUSE_S, PAUSE_FACTOR * (anyio.current_time() - began)), MAX_PAUSE_S))
            beaten = not await listener.wait()
            if listener.ended:
                yield farewell()
                return
