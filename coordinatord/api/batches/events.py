"""Event stream of a batch. It sends the batch as GET returns it, whenever the batch has changed.

There are no events of batches, because a batch's counts are computed from its jobs. So the stream reads the batch again
after an event of any job of the batch's owner, after a notice about the batch, and with each heartbeat.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
import msgspec

from coordinatord.api.batches import answers
from coordinatord.api.batches.batches import BatchAtSnapshot
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.api.events.events_sql import EventFilter
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import Listener
from coordinatord.api.events.messages import HEARTBEAT, closing_message, opening_message, sse_message
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.notices import BATCH_MOVED, RESET, Notices

MIN_READ_PAUSE_S: Final = 1.0  # between two reads of a batch
MAX_READ_PAUSE_S: Final = 5.0
READ_PAUSE_FACTOR: Final = 10.0  # pause after a read, as a multiple of the read's duration

ReadBatch = Callable[[], Awaitable[BatchAtSnapshot | None]]


@attrs.frozen(slots=True)
class BatchEvents:
    hub: EventHub
    connection_limits: ConnectionLimits
    notices: Notices

    @asynccontextmanager
    async def open_stream(
        self, owner: bytes, batch_id: str, caller: str, read: ReadBatch
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield an iterator over the messages of the stream. The stream ends when the batch is deleted or this process
        stops. Raise Retryable when the caller or this process has too many streams."""
        with self.connection_limits.count_connection(caller, "stream"):
            async with self.hub.follow(EventFilter(owner=owner), None) as (listener, _):

                def wake_listener(payload: str) -> None:
                    if payload in (batch_id, RESET):
                        listener.wake()

                async with self.notices.subscribe(BATCH_MOVED, wake_listener):
                    yield self._stream_messages(listener, read)

    async def _stream_messages(self, listener: Listener, read: ReadBatch) -> AsyncIterator[bytes]:
        yield opening_message(self.hub.newest_id)
        last_sent = None
        while True:
            newest, began = self.hub.newest_id, anyio.current_time()
            try:
                found = await read()
            except Retryable:  # for example, while the index is being rebuilt; keep the state that was sent last
                found = last_sent
            if found is None and last_sent is not None:
                return
            if found is not None and (last_sent is None or found[1] != last_sent[1]):
                last_sent = found
                snapshot, batch = found
                data = msgspec.json.encode(answers.batch_shape_as_of(batch, snapshot.block_number))
                yield sse_message("batch", data, newest)
            elif listener.is_idle:
                yield HEARTBEAT
            await anyio.sleep(
                min(max(MIN_READ_PAUSE_S, READ_PAUSE_FACTOR * (anyio.current_time() - began)), MAX_READ_PAUSE_S)
            )
            await listener.wait()
            if listener.ended:
                yield closing_message()
                return
