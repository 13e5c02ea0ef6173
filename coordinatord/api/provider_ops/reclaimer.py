"""Reclaim claimed jobs that are past their window, so that owners get their money back without a request.

One process at a time holds this role. Two concurrent reclaims of a job are harmless: the outbox joins them, and the
chain accepts only one.
"""

from typing import Final

import anyio
import asyncpg
import structlog

from coordinatord.api.book.posted_jobs_sql import overdue_jobs
from coordinatord.base.wake import Wake
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import PostedOrder
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import NewRelay, NotQueued, Priority, RelayKind, submit_all
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from coordinatord.storage.database.transactions import transaction

log = structlog.get_logger(__name__)

# Pause before a refused or dropped reclaim is retried. A reclaim is refused when the index was behind.
_RETRY_AFTER_S: Final = 30.0
_MAX_BATCH: Final = 64
# Interval without new blocks.
_IDLE_INTERVAL_S: Final = 5.0


class ReclaimWorker:
    """Reclaims overdue jobs. `registry` is the job registry's address."""

    def __init__(self, database: Database, notices: Notices, registry: bytes, *, max_depth: int) -> None:
        self._database = database
        self._notices = notices
        self._registry = registry
        self._max_depth = max_depth
        # Time of the next attempt by job.
        self._tried: dict[bytes, float] = {}

    async def run(self) -> None:
        """Look for overdue jobs after each indexed block whenever this process holds the role, until cancelled."""
        await hold_role(self._database, "reclaim", self._term)

    async def _term(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        moved = Wake()
        async with self._notices.subscribe(INDEX_MOVED, lambda _: moved()):
            while True:
                await self.look(connection)
                await moved.wait(_IDLE_INTERVAL_S)

    async def look(self, connection: Connection) -> int:
        """Queue reclaims of overdue jobs. Return the number that were queued or already under way."""
        now = anyio.current_time()
        self._tried = {job: again for job, again in self._tried.items() if again > now}
        overdue = await overdue_jobs(connection, _MAX_BATCH, self._tried)
        if not overdue:
            return 0
        async with transaction(connection):
            reclaims = [self._reclaim(*job) for job in overdue.items()]
            outcomes = await submit_all(connection, reclaims, max_depth=self._max_depth)
        handed_over = [
            job for job, outcome in zip(overdue, outcomes, strict=True) if outcome is not NotQueued.QUEUE_FULL
        ]
        self._tried |= dict.fromkeys(handed_over, now + _RETRY_AFTER_S)
        log.info("overdue jobs reclaimed", jobs=len(handed_over), queue_full=len(overdue) - len(handed_over))
        return len(handed_over)

    def _reclaim(self, job: bytes, posted: PostedOrder) -> NewRelay:
        return NewRelay(
            RelayKind.RECLAIM,
            subject=job,
            dedupe=b"reclaim" + job,
            target=self._registry,
            calldata=job_registry.reclaim(posted),
            priority=Priority.EXIT,
            gas_estimate=gas_estimate(RelayKind.RECLAIM),
        )
