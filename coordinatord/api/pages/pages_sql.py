"""Counts of all jobs, and prices paid for a model over time, from a bounded sample of its settled jobs.

Jobs are stored in the order of posting, and `job_counts` lists the chunks of 4096 ordinals that hold settled jobs of
the model. Each of the newest chunks contributes an equal share of the sample: all recent jobs of a model with few, or
some jobs per hour of a model with millions. So the number of rows read does not grow with the table.
"""

import statistics
from collections.abc import Iterable
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import JOBS_COUNTED, SNAPSHOT, Snapshot, snapshot_of

_CHUNK_BITS: Final = 12
_CHUNKS: Final = 256
_SAMPLE: Final = 2048
_MIN_PER_CHUNK: Final = 8
# Seconds.
_WIDTHS: Final = (300, 900, 3600, 21_600, 86_400, 604_800)
_MAX_BUCKETS: Final = 96


@attrs.frozen(slots=True)
class RateRange:
    low: int
    median: int
    high: int

    @classmethod
    def of(cls, rates: Iterable[int]) -> "RateRange":
        ordered = sorted(rates)
        return cls(ordered[0], statistics.median_low(ordered), ordered[-1])


@attrs.frozen(slots=True)
class PriceBucket:
    """Rates of jobs claimed from `since` on, within one width."""

    since: int
    jobs: int
    rate_in: RateRange
    rate_out: RateRange


@attrs.frozen(slots=True)
class PaidRates:
    claimed_at: int
    rate_in: int
    rate_out: int


# Compared as rows, so that the index on the model is used: a rare model has few jobs in a chunk of 4096.
_SQL: Final = f"""
with chunks as materialized (
    select chunk from job_counts where list = 1 and key = int8send($1) and bits = {_CHUNK_BITS}
        and state = {JobState.SETTLED} order by chunk desc limit {_CHUNKS}),
share as materialized (select greatest({_MIN_PER_CHUNK}, {_SAMPLE} / greatest(count(*), 1)) as most from chunks)
select paid.*, m.model_id is not null as known, {JOBS_COUNTED} as counted, {SNAPSHOT}
from index_position p left join models m on m.model_id = $1
left join lateral (
    select j.claimed_at, j.rate_in::text, j.rate_out::text from chunks c cross join share s cross join lateral (
        select j.claimed_at, j.rate_in, j.rate_out from jobs j
        where (j.model_id, j.state, j.ordinal) >= ($1, {JobState.SETTLED}, c.chunk << {_CHUNK_BITS})
            and (j.model_id, j.state, j.ordinal) < ($1, {JobState.SETTLED}, c.chunk + 1 << {_CHUNK_BITS})
        order by j.model_id desc, j.state desc, j.ordinal desc limit s.most) j) paid on true
"""


async def read_paid(database: Database, model_id: int) -> tuple[Snapshot, list[PaidRates] | None]:
    """Return the sample, or None for an unknown model. Raise Retryable while a first backfill has not counted its
    jobs."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(_SQL, model_id)
    snapshot = snapshot_of(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has yet to count its jobs")
    if not rows[0]["known"]:
        return snapshot, None
    return snapshot, [PaidRates(row[0], int(row[1]), int(row[2])) for row in rows if row[0] is not None]


def buckets_of(paid: list[PaidRates]) -> tuple[int, list[PriceBucket]]:
    """Return the width of the buckets in seconds, and the buckets that contain jobs, oldest first.

    >>> buckets_of([PaidRates(7200, 5, 9), PaidRates(7201, 7, 9)])[1][0].rate_in
    RateRange(low=5, median=5, high=7)
    """
    if not paid:
        return _WIDTHS[0], []
    span = max(one.claimed_at for one in paid) - min(one.claimed_at for one in paid)
    width = next((width for width in _WIDTHS if span // width < _MAX_BUCKETS), _WIDTHS[-1])
    by_time: dict[int, list[PaidRates]] = {}
    for one in paid:
        by_time.setdefault(one.claimed_at // width * width, []).append(one)
    return width, [
        PriceBucket(
            since,
            len(jobs),
            RateRange.of(one.rate_in for one in jobs),
            RateRange.of(one.rate_out for one in jobs),
        )
        for since, jobs in sorted(by_time.items())
    ]


async def read_counts(database: Database) -> tuple[Snapshot, dict[int, int]]:
    """Return the number of jobs by state, from a few rows per 2^18 jobs."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select c.state, c.jobs, {JOBS_COUNTED} as counted, {SNAPSHOT} from index_position p"
            " left join lateral (select state, sum(jobs)::bigint as jobs from job_counts"
            " where list = 0 and key = ''::bytea and bits = 18 group by state) c on true"
        )
    snapshot = snapshot_of(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has yet to count its jobs")
    return snapshot, {row["state"]: row["jobs"] for row in rows if row["state"] is not None}
