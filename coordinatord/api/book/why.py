"""Why a job is unclaimed: which providers could take it, what prevents the others, and what would change that.

The answer contains public data of the chain and the quotes, and the lease of this job, because its holder is about to
claim it publicly. A provider's other leases and its number of free slots stay private. The answer only shows if a
provider has no free slot.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import anyio
import attrs

from common.api import why
from common.api.states import JobState
from common.scalars import hex_of
from coordinatord.api.book import why_sql
from coordinatord.api.book.funding import Funding
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.why_changes import helpful_changes
from coordinatord.api.book.why_reasons import ranked, reasons_of_job, standing_of
from coordinatord.api.book.why_sql import OpenJob, ProviderFacts
from coordinatord.api.book.why_verdict import verdict_on_moved, verdict_on_open
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import Snapshot

WhyShape: TypeAlias = why.Why

# Unless the index moves earlier.
_CACHE_S: Final = 1.0
_MAX_KEPT_ANSWERS: Final = 4096
_MAX_READS: Final = 1  # an answer about an open job takes PostgreSQL about 20 ms
_MAX_WAITING: Final = 64
_MAX_PROVIDERS: Final = 50


@attrs.define(slots=True)
class WhyReads:
    """Reader of answers. Its `funding` is separate, so that its requests to the node cannot delay polls."""

    reads: IndexReads
    funding: Funding
    liveness_ms: int
    clock: Callable[[], float] = time.monotonic
    _kept: dict[bytes, tuple[float, Snapshot, WhyShape]] = attrs.field(factory=dict, init=False)
    _turns: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_MAX_READS), init=False)

    async def read(self, job_id: bytes) -> WhyShape | NoSuchObject:
        found = await self.reads.job.get(job_id)
        if found.value is None:
            return NoSuchObject("job")
        kept = self._kept.get(job_id)
        if kept is not None and kept[1] == found.snapshot and self.clock() - kept[0] < _CACHE_S:
            return kept[2]
        if found.value.state == JobState.OPEN:
            answer = await self._of_open(found.value)
        else:
            answer = _moved(found.value, found.snapshot)
        if len(self._kept) >= _MAX_KEPT_ANSWERS:
            self._kept.clear()
        self._kept[job_id] = (self.clock(), found.snapshot, answer)
        return answer

    async def _of_open(self, row: JobRow) -> WhyShape:
        async def facts(database: Database) -> tuple[Snapshot, tuple[OpenJob, list[ProviderFacts]] | None]:
            async with database.connection_for_lists() as connection:
                snapshot, job = await why_sql.read_job(connection, row.job_id)
                if job is None:
                    return snapshot, None
                return snapshot, (job, await why_sql.read_providers(connection, job, self.liveness_ms))

        if self._turns.statistics().tasks_waiting >= _MAX_WAITING:
            raise Retryable("busy", "too many concurrent requests for reasons why jobs are unclaimed", retry_after=1)
        async with self._turns:
            _, read = await self.reads.lists.read(facts)
        if read is None:  # the job's state changed after its row was read
            found = await self.reads.job.get(row.job_id)
            return _moved(found.value or row, found.snapshot)
        job, providers = read
        return explained(job, providers, await self.funding.read([job.row], job.snapshot))


def explained(job: OpenJob, providers: Sequence[ProviderFacts], funds: Funds) -> WhyShape:
    """Return the answer about an open job."""
    shared = reasons_of_job(job, funds)
    standings = ranked([standing_of(job, provider, shared) for provider in providers])
    verdict, text = verdict_on_open(job, shared, standings)
    return why.Why(
        hex_of(job.row.job_id),
        job.row.state,
        verdict,
        text,
        tuple(
            why.WhyProvider(str(one.provider.provider_id), one.takes, one.reasons) for one in standings[:_MAX_PROVIDERS]
        ),
        tuple(helpful_changes(job, standings, funds)),
        str(job.snapshot.block_number),
    )


def _moved(row: JobRow, snapshot: Snapshot) -> WhyShape:
    if row.state == JobState.OPEN:  # a reorg came between two reads
        raise Retryable("not_ready", "the job is changing now; try again", retry_after=1)
    verdict, text = verdict_on_moved(row)
    return why.Why(hex_of(row.job_id), row.state, verdict, text, (), (), str(snapshot.block_number))
