"""Progress hub: reads the progress of followed jobs when one of the two logs moves, and notifies their listeners.

    index's log ──► event hub ──► events of a followed job ─┐
    outbox's log ──► relay queued or ended ─────────────────┴─► one read for all followed jobs ─► streams

Signing adds no log entry, so followed jobs are also read once a second.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
import structlog

from common.api.events import EventKind
from common.api.progress import ProgressStep, ProvisionalJob
from common.api.shapes import Digits
from coordinatord.api.events.events_sql import LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import Listener
from coordinatord.api.events.progress import progress_of
from coordinatord.api.events.progress_sql import read_found
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import RELAY_ENDED, RELAY_QUEUED, Notices

POLL_S: Final = 1.0
GATHER_S: Final = 0.02  # entries of the logs within this time share one read
REST_FACTOR: Final = 5  # pause after a read, as a multiple of its duration

log = structlog.get_logger(__name__)

_encode: Final = msgspec.json.Encoder().encode
_Changing = tuple[str, bool, tuple[ProgressStep[Digits], ...]]


def message_of(progress: ProvisionalJob) -> bytes:
    """Return the message of a stream. It has no id, because a reader that reconnects gets the newest progress."""
    return b"event: provisional\ndata: %s\n\n" % _encode(progress)


def _changing(progress: ProvisionalJob) -> _Changing:
    """Return the members to compare with the last message. They exclude the block, which always changes."""
    return progress.status, progress.provisional, progress.steps


class ProgressHub:
    """Progress of single jobs, and news of jobs that are followed. `run` must be running."""

    def __init__(self, database: Database, notices: Notices, events: EventHub) -> None:
        self._notices = notices
        self._reads = BatchedReads(database.prepared_connection(), read_found)
        self._line = database.prepared_connection()
        self._followers: dict[bytes, dict[Listener, None]] = {}
        self._sent: dict[bytes, _Changing] = {}
        self._wake = Wake()
        events.watch(self._on_events)

    async def read(self, job_id: bytes) -> ProvisionalJob | None:
        return progress_of(job_id, await self._reads.get(job_id))

    @asynccontextmanager
    async def following(self, job_id: bytes, listener: Listener) -> AsyncIterator[None]:
        """Send the listener the job's progress, and each change while the block runs."""
        self._followers.setdefault(job_id, {})[listener] = None
        try:
            present = await self.read(job_id)
            if present is not None:
                self._sent.setdefault(job_id, _changing(present))
                listener.notify_progress(message_of(present))
            self._wake()
            yield
        finally:
            del self._followers[job_id][listener]
            if not self._followers[job_id]:
                del self._followers[job_id]
                self._sent.pop(job_id, None)

    def _on_events(self, events: Sequence[LoggedEvent]) -> None:
        if any(event.job_id in self._followers or event.kind is EventKind.RESET for event in events):
            self._wake()

    def _on_outbox(self, _: str) -> None:
        if self._followers:
            self._wake()

    async def run(self) -> None:
        """Read followed jobs until cancelled."""
        async with (
            self._notices.subscribe(RELAY_QUEUED, self._on_outbox),
            self._notices.subscribe(RELAY_ENDED, self._on_outbox),
        ):
            while True:
                await self._wake.wait(POLL_S)
                if not self._followers:
                    continue
                await anyio.sleep(GATHER_S)
                began = anyio.current_time()
                try:
                    await self._look()
                except Retryable as error:
                    log.warning("progress of jobs not read", reason=error.message)
                await anyio.sleep(REST_FACTOR * (anyio.current_time() - began))

    async def _look(self) -> None:
        found = await read_found(self._line, list(self._followers))
        for job_id, each in found.items():
            progress, followers = progress_of(job_id, each), self._followers.get(job_id)
            if progress is None or not followers or self._sent.get(job_id) == (changing := _changing(progress)):
                continue
            self._sent[job_id] = changing
            message = message_of(progress)
            for listener in tuple(followers):
                listener.notify_progress(message)
