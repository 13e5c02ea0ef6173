"""Reclaim claimed jobs that are past their window, so that owners get their payments back without a request.

One process at a time holds the role that queues reclaims. Two concurrent reclaims of a job are harmless: the outbox
joins them, and the chain accepts only one.
"""

from typing import Final

import anyio
import asyncpg
import structlog

from coordinatord.api.book.posted_jobs_sql import read_overdue_jobs
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

# Pause before a refused or dropped reclaim is retried. For example, the chain refuses the reclaim of a job that ended
# after the indexed block.
_RETRY_PAUSE_S: Final = 30.0
_MAX_JOBS_PER_ROUND: Final = 64
# Interval of checks while no new block is indexed.
_IDLE_CHECK_INTERVAL_S: Final = 5.0


class ReclaimWorker:
    """Reclaims overdue jobs. `registry` is the job registry's address."""

    def __init__(self, database: Database, notices: Notices, registry: bytes, *, max_depth: int) -> None:
        self._database = database
        self._notices = notices
        self._registry = registry
        self._max_depth = max_depth
        # Earliest time of the next attempt, by job.
        self._retry_at: dict[bytes, float] = {}

    async def run(self) -> None:
        """Queue reclaims of overdue jobs after each indexed block while this process holds the role, until
        cancelled."""
        await hold_role(self._database, "reclaim", self._run_while_role_held)

    async def _run_while_role_held(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        moved = Wake()
        async with self._notices.subscribe(INDEX_MOVED, lambda _: moved()):
            while True:
                await self.queue_overdue(connection)
                await moved.wait(_IDLE_CHECK_INTERVAL_S)

    async def queue_overdue(self, connection: Connection) -> int:
        """Queue reclaims of overdue jobs. Return the number of reclaims that are now pending."""
        now = anyio.current_time()
        self._retry_at = {job: retry_at for job, retry_at in self._retry_at.items() if retry_at > now}
        overdue = await read_overdue_jobs(connection, _MAX_JOBS_PER_ROUND, self._retry_at)
        if not overdue:
            return 0
        async with transaction(connection):
            reclaims = [self._reclaim_relay(*job) for job in overdue.items()]
            outcomes = await submit_all(connection, reclaims, max_depth=self._max_depth)
        submitted = [job for job, outcome in zip(overdue, outcomes, strict=True) if outcome is not NotQueued.QUEUE_FULL]
        self._retry_at |= dict.fromkeys(submitted, now + _RETRY_PAUSE_S)
        log.info("reclaims of overdue jobs queued", jobs=len(submitted), queue_full_jobs=len(overdue) - len(submitted))
        return len(submitted)

    def _reclaim_relay(self, job: bytes, posted: PostedOrder) -> NewRelay:
        return NewRelay(
            RelayKind.RECLAIM,
            subject=job,
            dedupe=b"reclaim" + job,
            target=self._registry,
            calldata=job_registry.reclaim_calldata(posted),
            priority=Priority.EXIT,
            gas_estimate=gas_estimate(RelayKind.RECLAIM),
        )
