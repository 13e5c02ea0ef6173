"""Explanation of why a job is unclaimed: providers that could take it, what keeps others from it, changes that help.

The answer contains public data of the chain and the quotes. It also contains the lease of this job, because the holder
of the lease is about to claim the job publicly. A provider's other leases and its number of free slots stay private.
The answer only shows whether a provider has a free slot.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import attrs

from common.api import why
from common.api.states import JobState
from common.scalars import hex_of
from coordinatord.api.book import why_sql
from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.why_changes import helpful_changes
from coordinatord.api.book.why_reasons import assess_provider, reasons_of_job, sort_assessments
from coordinatord.api.book.why_sql import OpenJob, ProviderFacts
from coordinatord.api.book.why_verdict import verdict_on_claimed_or_ended, verdict_on_open
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import Snapshot

# Lifetime of a cached answer, unless a new block is indexed earlier.
_CACHE_LIFETIME_S: Final = 1.0
_MAX_CACHED_ANSWERS: Final = 4096
_MAX_CONCURRENT_READS: Final = 1  # an answer about an open job takes PostgreSQL about 20 ms
_MAX_WAITING_REQUESTS: Final = 64
_MAX_PROVIDERS: Final = 50


@attrs.define(slots=True)
class UnclaimedJobExplainer:
    """Explains why jobs are unclaimed, and caches the explanations. `funds_checker` must not be shared with polls, so
    that explanations do not delay polls with requests to the node."""

    reads: IndexReads
    funds_checker: FundsChecker
    liveness_ms: int
    clock: Callable[[], float] = time.monotonic
    _cache: dict[bytes, tuple[float, Snapshot, why.Why]] = attrs.field(factory=dict, init=False)
    _read_limiter: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(_MAX_CONCURRENT_READS), init=False
    )

    async def explain(self, job_id: bytes) -> why.Why | NoSuchObject:
        found = await self.reads.jobs.get(job_id)
        if found.value is None:
            return NoSuchObject("job")
        cached = self._cache.get(job_id)
        if cached is not None and cached[1] == found.snapshot and self.clock() - cached[0] < _CACHE_LIFETIME_S:
            return cached[2]
        if found.value.state == JobState.OPEN:
            answer = await self._explain_open(found.value)
        else:
            answer = _explain_claimed_or_ended(found.value, found.snapshot)
        if len(self._cache) >= _MAX_CACHED_ANSWERS:
            self._cache.clear()
        self._cache[job_id] = (self.clock(), found.snapshot, answer)
        return answer

    async def _explain_open(self, row: JobRow) -> why.Why:
        async def read_facts(database: Database) -> tuple[Snapshot, tuple[OpenJob, list[ProviderFacts]] | None]:
            async with database.connection_for_lists() as connection:
                snapshot, job = await why_sql.read_job(connection, row.job_id)
                if job is None:
                    return snapshot, None
                return snapshot, (job, await why_sql.read_providers(connection, job, self.liveness_ms))

        if self._read_limiter.statistics().tasks_waiting >= _MAX_WAITING_REQUESTS:
            message = "too many requests to explain unclaimed jobs are waiting; try again"
            raise Retryable("busy", message, retry_after=1)
        async with self._read_limiter:
            _, read = await self.reads.lists.read(read_facts)
        if read is None:  # the job's state changed after its row was read
            found = await self.reads.jobs.get(row.job_id)
            return _explain_claimed_or_ended(found.value or row, found.snapshot)
        job, providers = read
        return explain_open_job(job, providers, await self.funds_checker.read_funds([job.row], job.snapshot))


def explain_open_job(job: OpenJob, providers: Sequence[ProviderFacts], funds: Funds) -> why.Why:
    """Return why an open job is unclaimed."""
    job_reasons = reasons_of_job(job, funds)
    assessments = sort_assessments([assess_provider(job, provider, job_reasons) for provider in providers])
    verdict, text = verdict_on_open(job, job_reasons, assessments)
    return why.Why(
        hex_of(job.row.job_id),
        job.row.state,
        verdict,
        text,
        tuple(
            why.WhyProvider(str(each.provider.provider_id), each.would_take, each.reasons)
            for each in assessments[:_MAX_PROVIDERS]
        ),
        tuple(helpful_changes(job, assessments, funds)),
        str(job.snapshot.block_number),
    )


def _explain_claimed_or_ended(row: JobRow, snapshot: Snapshot) -> why.Why:
    if row.state == JobState.OPEN:  # a reorg came between two reads
        raise Retryable("not_ready", "the job is changing now; try again", retry_after=1)
    verdict, text = verdict_on_claimed_or_ended(row)
    return why.Why(hex_of(row.job_id), row.state, verdict, text, (), (), str(snapshot.block_number))
