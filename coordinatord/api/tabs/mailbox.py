"""Mailbox of tabs. A tab is a claimed job whose owner and provider exchange sealed frames until the job is settled. The
mailbox stores posted frames and delivers stored frames to the streams of this process.

    post ──one statement──► tab_frames ──one statement per process and 20 ms──► readers ──► streams

The tables are unlogged, so a restart of PostgreSQL may empty them. Then frames are lost, and the parties make a new
handshake.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog

from common.api.events import EventKind
from common.api.states import JobState
from common.api.tabs import MAX_TAB_WAITING_BYTES, MAX_TAB_WAITING_FRAMES, TabRefusalCode
from coordinatord.api.events.events_sql import LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.tabs.parties import PartyReads, is_owner_side, party_refusal
from coordinatord.api.tabs.readers import TabReader
from coordinatord.api.tabs.tabs_sql import (
    NewFrames,
    register_reader,
    restore_readers,
    store_frames,
    take_frames,
)
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Database

DELIVERY_INTERVAL_S: Final = 0.02
IDLE_WAIT_S: Final = 60.0
RETRY_PAUSE_S: Final = 0.5  # pause after a failure of the database
MAX_ROW_BYTES: Final = 128 << 10  # frames in one row; a longer frame gets a separate row
# Share of a mailbox that a process may fill before the process counts the waiting frames again.
MAX_UNCOUNTED_SHARE: Final = 1 / 8
MAX_UNCOUNTED_TABS: Final = 65_536

log = structlog.get_logger(__name__)

Frame = tuple[bytes, bytes]  # job id, and the base64 of a frame
IsOverRate = Callable[[bytes, int, int], bool]
"""Takes a job id, a number of frames and their bytes. Returns True if the tab exceeds its rate."""


class TabMailbox:
    def __init__(self, database: Database, hub: EventHub) -> None:
        self.parties = PartyReads(database)
        self._connection = database.prepared_connection()
        self._hub = hub
        self._readers: dict[tuple[bytes, bool], TabReader] = {}
        self._registered: dict[int, TabReader] = {}
        self._possibly_ended: set[bytes] = set()  # jobs that may have ended while a reader is open
        self._wake = Wake()
        self._uncounted = _UncountedFrames()
        hub.add_watcher(self._on_events)

    async def store_frames(
        self, session: SessionRow, frames: Sequence[Frame], is_over_rate: IsOverRate
    ) -> dict[bytes, TabRefusalCode]:
        """Store frames for the other side of their tabs. Return a refusal code for each tab whose frames were
        refused."""
        by_tab: dict[bytes, list[bytes]] = {}
        for job_id, frame in frames:
            by_tab.setdefault(job_id, []).append(frame)
        to_owner = not is_owner_side(session)
        refused: dict[bytes, TabRefusalCode] = {}
        accepted: list[NewFrames] = []
        parties = await self.parties.read_parties(by_tab)
        for job_id, of_tab in by_tab.items():
            code: TabRefusalCode | None = party_refusal(parties[job_id], session)
            if code is None and is_over_rate(job_id, len(of_tab), sum(map(len, of_tab))):
                code = "mailbox_full"
            if code is not None:
                refused[job_id] = code
            else:
                accepted.extend(_pack_rows(job_id, of_tab))
        if accepted:
            full = await store_frames(
                self._connection,
                accepted,
                self._uncounted.tabs_to_count(accepted, to_owner=to_owner),
                to_owner=to_owner,
            )
            refused |= dict.fromkeys(full, "mailbox_full")
            self._uncounted.mark_full(full, to_owner=to_owner)
        return refused

    @asynccontextmanager
    async def open_reader(self, job_id: bytes, *, to_owner: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the stream of a new reader. The new reader replaces the older reader of this tab and direction, if
        any."""
        reader, direction = TabReader(job_id, to_owner=to_owner), (job_id, to_owner)
        if (older := self._readers.get(direction)) is not None:
            older.finish("replaced")
        self._readers[direction] = reader
        try:
            await register_reader(self._connection, reader.key)
            self._registered[reader.key.id] = reader
            self._possibly_ended.add(job_id)  # the job may have ended since its parties were read
            if self._hub.stopping:
                reader.finish("stopping")
            self._wake()
            yield reader.stream()
        finally:
            self._registered.pop(reader.key.id, None)
            if self._readers.get(direction) is reader:
                del self._readers[direction]

    async def run(self) -> None:
        """Deliver frames to readers until cancelled."""
        failed = False
        while True:
            if not self._registered:
                await self._wake.wait(IDLE_WAIT_S)
                continue
            try:
                await self._deliver_frames()
                await self._end_unclaimed_readers()
                failed = False
                await anyio.sleep(DELIVERY_INTERVAL_S)
            except Retryable as error:
                if not failed:
                    log.warning("frames of tabs not delivered", reason=error.message)
                failed = True
                await anyio.sleep(RETRY_PAUSE_S)

    async def _deliver_frames(self) -> None:
        free = {number: reader for number, reader in self._registered.items() if reader.is_free}
        if not free:
            return
        taken = await take_frames(self._connection, {reader.key: reader.last_row_id for reader in free.values()})
        for number, events in taken.events.items():
            free[number].deliver(events)
        for number in taken.replaced_reader_ids:
            free[number].finish("replaced")
        if taken.unknown_reader_ids:
            for number in taken.unknown_reader_ids:
                free[number].last_row_id = 0  # the emptied table restarts its ids
            await restore_readers(self._connection, [free[number].key for number in taken.unknown_reader_ids])

    async def _end_unclaimed_readers(self) -> None:
        """End the readers of jobs that are not claimed any more."""
        moved = self._possibly_ended & {job_id for job_id, _ in self._readers}
        self._possibly_ended.clear()
        if not moved:
            return
        try:
            found = await self.parties.read_parties(moved)
        except Retryable:
            self._possibly_ended |= moved
            raise
        for (job_id, _), reader in self._readers.items():
            if job_id not in found:
                continue
            parties = found[job_id]
            if parties is None or parties.state == JobState.OPEN:
                reader.finish("unclaimed")
            elif parties.state != JobState.CLAIMED:
                reader.finish("ended")

    def _on_events(self, events: Sequence[LoggedEvent]) -> None:
        if self._hub.stopping:
            for reader in self._readers.values():
                reader.finish("stopping")
            return
        self.parties.invalidate(events)
        if any(event.kind is EventKind.RESET for event in events):
            self._possibly_ended.update(job_id for job_id, _ in self._readers)
        else:
            self._possibly_ended.update(event.job_id for event in events if self._has_reader(event.job_id))

    def _has_reader(self, job_id: bytes) -> bool:
        return (job_id, False) in self._readers or (job_id, True) in self._readers


class _UncountedFrames:
    """Share of each mailbox that this process filled since it last counted the waiting frames."""

    def __init__(self) -> None:
        self._shares: dict[tuple[bytes, bool], float] = {}

    def tabs_to_count(self, rows: Sequence[NewFrames], *, to_owner: bool) -> list[bytes]:
        """Add these rows to the shares. Return the tabs whose waiting frames must be counted before the rows are
        stored."""
        if len(self._shares) > MAX_UNCOUNTED_TABS:
            self._shares.clear()
        due = set()
        for row in rows:
            tab = row.job_id, to_owner
            share = max(row.frames / MAX_TAB_WAITING_FRAMES, row.size / MAX_TAB_WAITING_BYTES)
            self._shares[tab] = self._shares.get(tab, 1.0) + share
            if self._shares[tab] > MAX_UNCOUNTED_SHARE:
                due.add(row.job_id)
        for job_id in due:
            self._shares[job_id, to_owner] = 0.0
        return list(due)

    def mark_full(self, full: Iterable[bytes], *, to_owner: bool) -> None:
        """Mark mailboxes as full, so that their waiting frames are counted before the next rows are stored."""
        for job_id in full:
            self._shares[job_id, to_owner] = 1.0


def _pack_rows(job_id: bytes, frames: Sequence[bytes]) -> Iterator[NewFrames]:
    """Join frames into rows of at most MAX_ROW_BYTES, in order."""
    events: list[bytes] = []
    size = 0
    for frame in frames:
        if events and size + len(frame) > MAX_ROW_BYTES:
            yield NewFrames(job_id, len(events), size, b"".join(events))
            events, size = [], 0
        events.append(b"event: frame\ndata: %s\n\n" % frame)
        size += len(frame)
    yield NewFrames(job_id, len(events), size, b"".join(events))
