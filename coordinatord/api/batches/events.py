"""A batch followed: the batch as GET gives it, told whenever it has changed.

A batch is no row that an event changes: its counts are computed from its jobs. So it is read again when a job of its
owner has moved or its worker tells of it, at most once a second, and with each heartbeat.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs

from coordinatord.api.batches.batches import FoundBatch
from coordinatord.api.events.events_sql import EventFilter
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import HEARTBEAT, Listener, Places, farewell, message, opening
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.notices import BATCH_MOVED, RESET, Notices

_APART: Final = 1.0  # seconds between two reads of a batch that somebody follows
_SHARE: Final = 10.0  # a large batch is read at a cost: for so many times what a read took there is no other
_LONGEST: Final = 5.0

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
        """The bytes of a stream of `batch_id`, until it is not there any more. `read` reads it, and `data` is the JSON
        of what was read. Raises Retryable where the caller has no place."""
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
            except Retryable:  # the index is being rebuilt, say: what was told stands until it is back
                found = seen
            if found is None and seen is not None:
                return
            if found is not None and (seen is None or found.batch != seen.batch):
                seen = found
                yield message("batch", data(found), newest)
            elif beaten:
                yield HEARTBEAT
            await anyio.sleep(min(max(_APART, _SHARE * (anyio.current_time() - began)), _LONGEST))
            beaten = not await listener.wait()
            if listener.ended is not None:
                yield farewell(listener.ended)
                return
