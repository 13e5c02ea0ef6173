"""Transactions that ended jobs."""

from typing import Final

import attrs

from coordinatord.api.book import jobs_sql
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer import endings_sql
from coordinatord.storage.database.connections import Database

# A job lives for two days at most.
MAX_BLOCK_RANGES: Final = 400


@attrs.frozen(slots=True)
class Endings:
    """Finds the transactions that ended jobs.

    Transactions of this deployment are in the outbox. Others are searched in the chain's logs from the block of the
    post on, once per job. `widest` is the number of blocks per search."""

    database: Database
    registry: JobRegistry
    widest: int

    async def known(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            return await endings_sql.ending_of(connection, job_id)

    async def find(self, job_id: bytes) -> bytes | None:
        """Return the transaction, or None if the node has pruned its log. Raise Retryable when the index lags."""
        known = await self.known(job_id)
        if known is not None:
            return known
        found = await self._search(job_id)
        if found is not None:
            async with self.database.connection() as connection:
                await endings_sql.remember_ending(connection, job_id, found)
        return found

    async def _search(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            posted = await jobs_sql.read_posted_block(connection, job_id)
        if posted is None:
            raise Retryable("not_ready", "the index does not know the job yet", retry_after=1)
        head = await self.registry.head()
        for _ in range(MAX_BLOCK_RANGES):
            if posted > head:
                return None
            last = min(posted + self.widest - 1, head)
            found = await self.registry.ended_in(job_id, posted, last)
            if found is not None:
                return found
            posted = last + 1
        return None
