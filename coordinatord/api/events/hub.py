"""Event hub: reads the index's log once for the whole process, and passes new events to their readers.

    indexer ──commit──► events, notice ──► hub ──► topic (one filter) ──► listeners: streams
                                            └────► watchers: waiting polls, mailboxes, the cache of the index's position

The newest events are in memory, so that a thousand listeners that reconnect after a restart cost no queries.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from operator import attrgetter
from typing import Final

import anyio.lowlevel
import structlog

from common.api.events import EventKind
from coordinatord.api.events import events_sql
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.listeners import MAX_EVENTS_PER_PIECE, Listener
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices

log = structlog.get_logger(__name__)

POLL_INTERVAL_S: Final = 2.0  # between two reads of the log, if no notice arrives
MAX_READ_EVENTS: Final = 5_000
MIN_KEPT_EVENTS: Final = 10_000  # events in memory
MAX_REPLAY_IDS: Final = 50_000  # a listener that is farther behind the newest id gets a reset, which is cheaper
MAX_SCANNED_EVENTS: Final = 1_000  # events in memory that are scanned for one piece of a replay
_event_id: Final = attrgetter("id")

Watcher = Callable[[Sequence[LoggedEvent]], None]
WaitForTurn = Callable[[], Awaitable[None]]


class EventHub:
    def __init__(self, database: Database, notices: Notices) -> None:
        self._database = database
        self._connection = database.prepared_connection()
        self._notices = notices
        self._recent: list[LoggedEvent] = []  # at least the last MIN_KEPT_EVENTS, in their order
        # Listeners by filter, and filters by their keys.
        self._topics: dict[Hashable, dict[EventFilter, dict[Listener, None]]] = {}
        self._watchers: list[Watcher] = []
        self.stopping = False

    async def run(self) -> None:
        """Read the log until cancelled."""
        wake = Wake()
        async with self._notices.subscribe(INDEX_MOVED, lambda _: wake()):
            failed = False
            while True:
                try:
                    await self._read_log()
                    failed = False
                except Retryable as error:
                    if not failed:
                        log.warning("events not read", reason=error.message)
                    failed = True
                await wake.wait(POLL_INTERVAL_S)

    def close(self) -> None:
        """End every stream, because the process stops. The clients reconnect to another process."""
        self.stopping = True
        for topics in self._topics.values():
            for listeners in topics.values():
                for listener in listeners:
                    listener.end()
        self._notify_watchers(())

    def add_watcher(self, watcher: Watcher) -> None:
        """Register `watcher`. The hub calls it with new events, before the listeners, and with no events when the hub
        closes. The watcher must not block."""
        self._watchers.append(watcher)

    @asynccontextmanager
    async def follow(
        self, event_filter: EventFilter, after_id: int | None, wait_for_turn: WaitForTurn = anyio.lowlevel.checkpoint
    ) -> AsyncIterator[tuple[Listener, int]]:
        """Yield a listener, and the id after which the listener begins. With `after_id`, the listener first receives
        the events since that id in pieces, or a reset if the log does not reach back that far. `wait_for_turn`, which
        waits while the caller exceeds its rate limit, is called before each piece except the first.

        Raise Retryable while the log has not been read yet.
        """
        newest = self.newest_id
        replay = None
        async with AsyncExitStack() as stack:
            if after_id is not None and after_id != newest:
                missed = self._read_missed(
                    event_filter, after_id, wait_for_turn, is_known=await self._is_known(after_id)
                )
                replay = await stack.enter_async_context(aclosing(missed))
            with self._register(Listener(event_filter, replay)) as listener:
                yield listener, newest if after_id is None else after_id

    @property
    def newest_id(self) -> int:
        """Return the newest id in memory. Raise Retryable while the log has not been read yet."""
        if not self._recent:
            raise Retryable("not_ready", "the event log is not loaded yet; try again", retry_after=1)
        return self._recent[-1].id

    async def _is_known(self, after_id: int) -> bool:
        """Return True if the log contains the id, unless the id is too far back to replay."""
        index = bisect_right(self._recent, after_id, key=_event_id)
        if index:
            return self._recent[index - 1].id == after_id
        if after_id < self.newest_id - MAX_REPLAY_IDS:
            return False
        async with self._database.connection_for_lists() as connection:
            return await events_sql.is_logged(connection, after_id)

    async def _read_missed(
        self, event_filter: EventFilter, after_id: int, wait_for_turn: WaitForTurn, *, is_known: bool
    ) -> AsyncGenerator[Sequence[LoggedEvent], None]:
        """Yield the events after an id that pass the filter, piece by piece, up to the newest event. If the id is not
        known, yield a reset instead."""
        if not is_known:
            reset = events_sql.to_reset_event(self._recent[-1])
            after_id = reset.id
            yield [reset]
        first = is_known  # the first piece does not wait, because the request already counted for it
        while after_id < self.newest_id:
            if not first:
                await wait_for_turn()
                await anyio.lowlevel.checkpoint()
            first = False
            events, after_id = await self._read_piece(after_id, event_filter)
            resets = [index for index, event in enumerate(events) if event.kind is EventKind.RESET]
            if events:
                yield events[resets[-1] :] if resets else events

    async def _read_piece(self, after_id: int, event_filter: EventFilter) -> tuple[list[LoggedEvent], int]:
        """Return the next events after an id that pass the filter, and the id up to which the log was searched."""
        oldest = self._recent[0].id
        if after_id < oldest - 1:
            async with self._database.connection_for_lists() as connection:
                events = await events_sql.read_events_between(
                    connection, after_id, oldest, event_filter, MAX_EVENTS_PER_PIECE
                )
            return events, events[-1].id if len(events) == MAX_EVENTS_PER_PIECE else oldest - 1
        index = bisect_right(self._recent, after_id, key=_event_id)
        events = []
        for event in self._recent[index : index + MAX_SCANNED_EVENTS]:
            after_id = event.id
            if event_filter.matches(event):
                events.append(event)
                if len(events) == MAX_EVENTS_PER_PIECE:
                    break
        return events, after_id

    @contextmanager
    def _register(self, listener: Listener) -> Iterator[Listener]:
        event_filter, key = listener.event_filter, listener.event_filter.key
        self._topics.setdefault(key, {}).setdefault(event_filter, {})[listener] = None
        if self.stopping:
            listener.end()
        try:
            yield listener
        finally:
            topics = self._topics[key]
            del topics[event_filter][listener]
            if not topics[event_filter]:
                del topics[event_filter]
            if not topics:
                del self._topics[key]

    async def _read_log(self) -> None:
        if not self._recent:
            self._recent.extend(await events_sql.read_newest_events(self._connection, MIN_KEPT_EVENTS))
            return
        while events := await events_sql.read_events_after(self._connection, self._recent[-1].id, MAX_READ_EVENTS):
            self._recent.extend(events)
            if len(self._recent) > 2 * MIN_KEPT_EVENTS:
                del self._recent[:-MIN_KEPT_EVENTS]
            self._notify_watchers(events)
            self._notify_listeners(events)
            if len(events) < MAX_READ_EVENTS:
                return
            await anyio.lowlevel.checkpoint()

    def _notify_watchers(self, events: Sequence[LoggedEvent]) -> None:
        for watcher in self._watchers:
            watcher(events)

    def _notify_listeners(self, events: Sequence[LoggedEvent]) -> None:
        matches: dict[EventFilter, list[LoggedEvent]] = {}
        for event in events:
            for key in tuple(self._topics) if event.kind is EventKind.RESET else event.keys:
                for event_filter in self._topics.get(key, ()):
                    if event_filter.matches(event):
                        matches.setdefault(event_filter, []).append(event)
        for event_filter, matching in matches.items():
            for listener in self._topics[event_filter.key][event_filter]:
                listener.notify(matching)
