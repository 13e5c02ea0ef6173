"""Read the index from PostgreSQL standbys, if any are configured.

A standby lags behind the primary. Its rows are used only if they are from the same block as the primary's index, which
was read a few milliseconds ago. Otherwise the primary is read. So no caller sees the index go back.
"""

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import STATEMENT_TIMEOUT_S, Database, open_database
from coordinatord.storage.database.errors import DATABASE_ERRORS
from coordinatord.storage.database.fresh_value import FreshValue
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import Snapshot

log = structlog.get_logger(__name__)

# Timeout of connecting to a standby and of a read by key. Short, because the primary is the fallback.
_READ_TIMEOUT_S: Final = 1.0
_MIN_SKIP_DURATION_S: Final = 0.05
_MAX_SKIP_DURATION_S: Final = 15.0
# Errors of a standby that is unreachable, cancels a read that conflicts with its replay, or lacks a migration.
_REPLICA_ERRORS: Final = (Retryable, *DATABASE_ERRORS, ValueError)

S = TypeVar("S")
T = TypeVar("T")


class Replica:
    """One standby. After an unusable answer, reads skip the standby for a while, longer after each failure."""

    def __init__(self, name: str, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.database = database
        self._clock = clock
        self._failures = 0
        self._skipped_until = 0.0

    @property
    def is_skipped(self) -> bool:
        return self._clock() < self._skipped_until

    def record_answer(self) -> None:
        metrics.replica_reads.labels("answered").inc()
        self._failures = 0

    def record_lag(self) -> None:
        metrics.replica_reads.labels("behind").inc()
        self._start_skipping()

    def record_failure(self, error: BaseException) -> None:
        metrics.replica_reads.labels("failed").inc()
        log.warning("replica did not answer", replica=self.name, reason=type(error).__name__)
        # Skip an unreachable standby for longer than a lagging one: each attempt may block a caller for a second.
        self._failures = max(self._failures, 5)
        self._start_skipping()

    def _start_skipping(self) -> None:
        self._skipped_until = self._clock() + min(
            _MAX_SKIP_DURATION_S, _MIN_SKIP_DURATION_S * 2.0 ** min(self._failures, 10)
        )
        self._failures += 1


class IndexSource(Generic[S]):
    """Source of index rows (a pool or a connection) of the primary and of each standby. Standbys are read in turn."""

    def __init__(self, primary: S, standbys: Sequence[tuple[Replica, S]], position: FreshValue[Snapshot]) -> None:
        self._primary = primary
        self._standbys = standbys
        self._turns = itertools.count()
        self._position = position

    async def read(self, query: Callable[[S], Awaitable[tuple[Snapshot, T]]]) -> tuple[Snapshot, T]:
        """Return the index's position and the rows, both read by `query` in one statement. Read the primary if no
        standby has a current answer."""
        available = [(replica, source) for replica, source in self._standbys if not replica.is_skipped]
        if available:
            replica, source = available[next(self._turns) % len(available)]
            try:
                snapshot, rows = await query(source)
            except _REPLICA_ERRORS as error:
                replica.record_failure(error)
            else:
                if await self._is_current(snapshot):
                    replica.record_answer()
                    return snapshot, rows
                replica.record_lag()
        store = self._position.begin_read()
        snapshot, rows = await query(self._primary)
        store(snapshot)  # saves a separate read of the position
        return snapshot, rows

    async def _is_current(self, snapshot: Snapshot) -> bool:
        return snapshot == self._position.recent_value() or snapshot == await self._position.get()


def pooled_source(
    primary: Database, replicas: Sequence[Replica], position: FreshValue[Snapshot]
) -> IndexSource[Database]:
    return IndexSource(primary, [(replica, replica.database) for replica in replicas], position)


def prepared_source(
    primary: Database, replicas: Sequence[Replica], position: FreshValue[Snapshot]
) -> IndexSource[PreparedConnection]:
    standbys = [(replica, replica.database.prepared_connection(_READ_TIMEOUT_S)) for replica in replicas]
    return IndexSource(primary.prepared_connection(), standbys, position)


@asynccontextmanager
async def open_replicas(
    urls: Sequence[str], *, max_size: int, statement_timeout_s: float = STATEMENT_TIMEOUT_S
) -> AsyncIterator[list[Replica]]:
    """Open the standbys. They are connected when first read, so an unreachable standby does not delay the start."""
    async with AsyncExitStack() as stack:
        replicas = []
        for url in urls:
            opened = open_database(
                url,
                max_size=max_size,
                acquire_timeout_s=_READ_TIMEOUT_S,
                statement_timeout_s=statement_timeout_s,
                standby=True,
            )
            parts = urlsplit(url)
            name = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
            replicas.append(Replica(name, await stack.enter_async_context(opened)))
        yield replicas
