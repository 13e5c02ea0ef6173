"""Transactions that ended jobs."""

from typing import Final

import attrs

from coordinatord.api.book import jobs_sql
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer import endings_sql
from coordinatord.storage.database.connections import Database

# Limit on the log queries for one job, each for one range of blocks. A job ends within two days, so no more are needed.
MAX_BLOCK_RANGES: Final = 400


@attrs.frozen(slots=True)
class EndingFinder:
    """Finds the transactions that ended jobs.

    Transactions of this deployment are in the outbox. Other transactions are looked up in the chain's logs, from the
    block of the post on, and then stored. `blocks_per_search` is the number of blocks of one log query."""

    database: Database
    registry: JobRegistry
    blocks_per_search: int

    async def find_transaction(self, job_id: bytes, *, in_logs: bool) -> bytes | None:
        """Return the transaction, or None if it is unknown, for example because the node has pruned its log. Raise
        Retryable if the index does not know the job yet."""
        async with self.database.connection() as connection:
            known = await endings_sql.find_ending_tx(connection, job_id)
        if known is not None or not in_logs:
            return known
        found = await self._search_logs(job_id)
        if found is not None:
            async with self.database.connection() as connection:
                await endings_sql.remember_ending(connection, job_id, found)
        return found

    async def _search_logs(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            first = await jobs_sql.read_posted_block(connection, job_id)
        if first is None:
            raise Retryable("not_ready", "the index does not know the job yet; try again", retry_after=1)
        head = await self.registry.read_head()
        for _ in range(MAX_BLOCK_RANGES):
            if first > head:
                return None
            last = min(first + self.blocks_per_search - 1, head)
            found = await self.registry.find_ending(job_id, first, last)
            if found is not None:
                return found
            first = last + 1
        return None
