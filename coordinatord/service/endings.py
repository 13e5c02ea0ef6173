"""The transaction that ended a job, for who asks about a job that has ended.

The outbox knows it when this deployment relayed it. An owner or provider may have sent it alone, and another
coordinator may have relayed it: then the chain's logs are searched, from the block of the post on, once for each job.
"""

from typing import Final

import attrs

from coordinatord.chain.job_registry import JobRegistry
from coordinatord.store import job_ends, jobs
from coordinatord.store.database import Database
from coordinatord.trouble import Retryable

_MOST_RANGES: Final = 400  # a job lives for two days at most


@attrs.frozen(slots=True)
class Endings:
    """`widest`: blocks of one search."""

    database: Database
    registry: JobRegistry
    widest: int

    async def known(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            return await job_ends.ending_of(connection, job_id)

    async def find(self, job_id: bytes) -> bytes | None:
        """None when the chain has no such log: the node has pruned it. `Retryable` when it cannot be told now."""
        known = await self.known(job_id)
        if known is not None:
            return known
        found = await self._search(job_id)
        if found is not None:
            async with self.database.connection() as connection:
                await job_ends.remember_ending(connection, job_id, found)
        return found

    async def _search(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            posted = await jobs.read_posted_block(connection, job_id)
        if posted is None:
            raise Retryable("not_ready", "the index does not know the job yet", retry_after=1)
        head = await self.registry.head()
        for _ in range(_MOST_RANGES):
            if posted > head:
                return None
            last = min(posted + self.widest - 1, head)
            found = await self.registry.ended_in(job_id, posted, last)
            if found is not None:
                return found
            posted = last + 1
        return None
