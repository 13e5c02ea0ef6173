"""Progress hub: reads the progress of jobs. When the outbox changes, wakes the streams that follow progress.

The event hub wakes a job's stream for changes in the index. No notice reports that an op was signed, so all streams are
also woken once a second.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import anyio

from common.api.progress import ProvisionalJob
from coordinatord.api.events.listeners import Listener
from coordinatord.api.events.messages import progress_message
from coordinatord.api.events.progress import build_progress
from coordinatord.api.events.progress_sql import read_jobs_with_ops
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Wake
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import RELAY_ENDED, RELAY_QUEUED, Notices

POLL_INTERVAL_S: Final = 1.0
GATHER_WINDOW_S: Final = 0.02  # notices of the outbox within this time wake the streams once
READ_PAUSE_FACTOR: Final = 5  # pause of a stream after a read, as a multiple of the read's duration
MAX_READ_PAUSE_S: Final = 1.0  # limit of this pause, because the stream's events and heartbeats wait as well


class ProgressHub:
    """Reads the progress of single jobs, and wakes listeners that follow progress. `run` must be running."""

    def __init__(self, database: Database, notices: Notices) -> None:
        self._notices = notices
        self._reads = BatchedReads(database.prepared_connection(), read_jobs_with_ops)
        self._followers: dict[Listener, None] = {}

    async def read_progress(self, job_id: bytes) -> ProvisionalJob | None:
        return build_progress(job_id, await self._reads.get(job_id))

    @contextmanager
    def follow(self, job_id: bytes, listener: Listener) -> Iterator[Callable[[], Awaitable[bytes]]]:
        """Wake the listener when progress may have changed. Yield a function that reads the job's progress, and returns
        a message if the progress has changed since the last call. All streams that are woken share one read."""
        last_sent: object = None
        pause_until = 0.0

        async def read_if_changed() -> bytes:
            nonlocal last_sent, pause_until
            await anyio.sleep_until(pause_until)
            began = anyio.current_time()
            try:
                progress = await self.read_progress(job_id)
            except Retryable:  # the next wake reads again
                return b""
            finally:
                ended = anyio.current_time()
                pause_until = ended + min(MAX_READ_PAUSE_S, READ_PAUSE_FACTOR * (ended - began))
            if progress is None:
                return b""
            content = (
                progress.status,
                progress.provisional,
                progress.steps,
            )  # without the block, which changes each time
            if content == last_sent:
                return b""
            last_sent = content
            return progress_message(progress)

        self._followers[listener] = None
        try:
            yield read_if_changed
        finally:
            del self._followers[listener]

    async def run(self) -> NoReturn:
        """Wake the streams until cancelled."""
        moved = Wake()
        async with (
            self._notices.subscribe(RELAY_QUEUED, lambda _: moved()),
            self._notices.subscribe(RELAY_ENDED, lambda _: moved()),
        ):
            while True:
                await moved.wait(POLL_INTERVAL_S)
                for listener in self._followers:
                    listener.wake()
                await anyio.sleep(GATHER_WINDOW_S)
