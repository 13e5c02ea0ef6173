"""Event hub: reads the index's log once for the whole process, and passes new events to their readers.

    indexer ──commit──► events, notice ──► hub ──► topic (one filter) ──► listeners: streams
                                            └────► watchers: waiting polls, progress, the cache of the index's position

The newest events are in memory, so that a thousand listeners that reconnect after a restart cost no queries.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from operator import attrgetter
from typing import Final

import anyio
import anyio.lowlevel
import attrs
import structlog

from common.api.events import EventKind
from coordinatord.api.events import events_sql
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.listeners import PIECE_EVENTS, Listener, Missed, News
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL_S: Final = 20.0  # for each listener; most proxies time out after 60 s
BEAT_TICK_S: Final = 0.25  # between portions of heartbeats, because all at once would delay requests
POLL_S: Final = 2.0  # between reads of the log without a notice
MAX_READ_EVENTS: Final = 5_000
KEPT_EVENTS: Final = 10_000  # in memory
MAX_REPLAY_IDS: Final = 50_000  # between a listener's id and the newest; beyond it, a reset is cheaper
MAX_SCANNED_EVENTS: Final = 1_000  # in memory, for one piece of a replay
_ID: Final = attrgetter("id")

Watcher = Callable[[Sequence[LoggedEvent]], None]
WaitForTurn = Callable[[], Awaitable[None]]


async def no_turn() -> None:
    """Return at once: the turn of a listener without limits."""


class EventHub:
    def __init__(self, database: Database, notices: Notices) -> None:
        self._database = database
        self._line = database.prepared_connection()
        self._notices = notices
        self._recent: list[LoggedEvent] = []  # at least the last KEPT_EVENTS, in their order
        self._topics: dict[EventFilter, dict[Listener, None]] = {}
        self._by_key: dict[Hashable, dict[EventFilter, None]] = {}
        self._watchers: list[Watcher] = []
        self.stopping = False

    async def run(self) -> None:
        """Read the log until cancelled."""
        wake = Wake()
        async with self._notices.subscribe(INDEX_MOVED, lambda _: wake()), anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            failed = False
            while True:
                try:
                    await self._read()
                    failed = False
                except Retryable as error:
                    if not failed:
                        log.warning("events not read", reason=error.message)
                    failed = True
                await wake.wait(POLL_S)

    def close(self) -> None:
        """End every stream, because the process stops. Their readers reconnect to another process."""
        self.stopping = True
        for listeners in self._topics.values():
            for listener in listeners:
                listener.end()
        self._notify_watchers(())

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with new events, before listeners, and with none when the hub closes. It must not block."""
        self._watchers.append(watcher)

    @asynccontextmanager
    async def following(
        self, wanted: EventFilter, after: int | None, turn: WaitForTurn = no_turn
    ) -> AsyncIterator[tuple[Listener, int]]:
        """Yield a listener, and the id that it begins after. With `after`, the listener first receives the events since
        that id, or a reset if the log does not reach back that far. Each piece but the first waits for a `turn`.

        Raise Retryable before the first read of the log."""
        newest, last = self.newest, self._recent[-1]
        missed: Missed | None = None
        if after is not None and after != newest:
            known = await self._is_known(after)
            reset = LoggedEvent(newest, EventKind.RESET, last.block_number, last.block_time)
            missed = _Replay(self, wanted, turn, after if known else newest, None if known else News([reset])).next
        listener = Listener(wanted, missed)
        with self._listening(listener):
            yield listener, newest if after is None else after

    @property
    def newest(self) -> int:
        """Return the newest id in memory. Raise Retryable before the first read of the log."""
        if not self._recent:
            raise Retryable("not_ready", "the event log is not loaded yet", retry_after=1)
        return self._recent[-1].id

    async def _is_known(self, after: int) -> bool:
        """Return False for an unknown id or one that is too far back."""
        place = bisect_right(self._recent, after, key=_ID)
        if place:
            return self._recent[place - 1].id == after
        if after < self.newest - MAX_REPLAY_IDS:
            return False
        async with self._database.connection_for_lists() as connection:
            return await events_sql.is_logged(connection, after)

    async def piece_after(self, after: int, wanted: EventFilter) -> tuple[list[LoggedEvent], int]:
        """Read the next events after an id that pass the filter. Also return the id up to which the search is
        complete."""
        oldest = self._recent[0].id
        if after < oldest - 1:
            async with self._database.connection_for_lists() as connection:
                events = await events_sql.read_between(connection, after, oldest, wanted, PIECE_EVENTS)
            return events, events[-1].id if len(events) == PIECE_EVENTS else oldest - 1
        place = bisect_right(self._recent, after, key=_ID)
        events = []
        for event in self._recent[place : place + MAX_SCANNED_EVENTS]:
            after = event.id
            if wanted.passes(event):
                events.append(event)
                if len(events) == PIECE_EVENTS:
                    break
        return events, after

    @contextmanager
    def _listening(self, listener: Listener) -> Iterator[None]:
        wanted, key = listener.wanted, _key_of(listener.wanted)
        self._topics.setdefault(wanted, {})[listener] = None
        self._by_key.setdefault(key, {})[wanted] = None
        if self.stopping:
            listener.end()
        try:
            yield
        finally:
            del self._topics[wanted][listener]
            if not self._topics[wanted]:
                del self._topics[wanted], self._by_key[key][wanted]
                if not self._by_key[key]:
                    del self._by_key[key]

    async def _read(self) -> None:
        if not self._recent:
            self._recent.extend(await events_sql.read_newest(self._line, KEPT_EVENTS))
            return
        while events := await events_sql.read_after(self._line, self._recent[-1].id, MAX_READ_EVENTS):
            self._recent.extend(events)
            if len(self._recent) > 2 * KEPT_EVENTS:
                del self._recent[:-KEPT_EVENTS]
            self._notify_watchers(events)
            self._notify_listeners(events)
            if len(events) < MAX_READ_EVENTS:
                return
            await anyio.lowlevel.checkpoint()

    def _notify_watchers(self, events: Sequence[LoggedEvent]) -> None:
        for watcher in self._watchers:
            watcher(events)

    def _notify_listeners(self, events: Sequence[LoggedEvent]) -> None:
        heard: dict[EventFilter, list[LoggedEvent]] = {}
        for event in events:
            for wanted in self._topics if event.kind is EventKind.RESET else self._topics_of(event):
                if wanted.passes(event):
                    heard.setdefault(wanted, []).append(event)
        for wanted, passing in heard.items():
            pieces = [News(passing[place : place + PIECE_EVENTS]) for place in range(0, len(passing), PIECE_EVENTS)]
            for listener in tuple(self._topics[wanted]):
                for news in pieces:
                    listener.notify(news)

    def _topics_of(self, event: LoggedEvent) -> Iterator[EventFilter]:
        keys = {
            None,
            ("job", event.job_id),
            ("owner", event.owner),
            ("provider", event.provider_id),
            ("provider", event.designated),
            ("model", event.model_id),
        }
        for key in keys:
            yield from self._by_key.get(key, ())

    async def _beat(self) -> None:
        """Send each listener a heartbeat per interval, a few at a time."""
        beaten: list[Listener] = []
        due = 0.0
        while True:
            await anyio.sleep(BEAT_TICK_S)
            due += sum(map(len, self._topics.values())) * BEAT_TICK_S / HEARTBEAT_INTERVAL_S
            while due >= 1:
                due -= 1
                if not beaten:
                    beaten = [listener for topic in self._topics.values() for listener in topic]
                    due = min(due, len(beaten))
                if beaten:
                    beaten.pop().beat()


@attrs.define(slots=True)
class _Replay:
    """Events after an id that pass a filter, piece by piece, up to the newest. `first` comes before them. Every piece
    but the first waits for a turn."""

    hub: EventHub
    wanted: EventFilter
    turn: WaitForTurn
    after: int
    first: News | None
    paid: bool = True  # the request itself counts for one piece

    async def next(self) -> News | None:
        first, self.first = self.first, None
        if first is not None:
            return first
        while self.after < self.hub.newest:
            if not self.paid:
                await self.turn()
                await anyio.lowlevel.checkpoint()
            self.paid = False
            events, self.after = await self.hub.piece_after(self.after, self.wanted)
            resets = [place for place, event in enumerate(events) if event.kind is EventKind.RESET]
            if events:
                return News(events[resets[-1] :] if resets else events)
        return None


def _key_of(wanted: EventFilter) -> Hashable:
    """Return the most selective member of the filter. Topics are indexed by it."""
    if wanted.job_id is not None:
        return "job", wanted.job_id
    if wanted.owner is not None:
        return "owner", wanted.owner
    if wanted.provider_id is not None:
        return "provider", wanted.provider_id
    return ("model", wanted.model_id) if wanted.model_id is not None else None
