"""Queries of the market's page: counts of jobs and free slots, times of blocks, and a model's prices over time.

Prices are from a sample of limited size of the model's settled jobs.

Jobs have ordinals, which number them in the order of posting. `job_counts` lists the chunks of 4096 ordinals that
contain settled jobs of the model. The sample has up to the same number of jobs from each of the newest chunks. For a
model with few jobs, the sample has all recent jobs. For a model with millions of jobs, the sample has some jobs per
hour. The number of rows read does not grow with the table.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.api.book.liveness_sql import LIVE_SINCE_SQL
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import ARE_JOBS_COUNTED, SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

_CHUNK_BITS: Final = 12
_MAX_CHUNKS: Final = 256
_MAX_SAMPLE_ROWS: Final = 2048
_MIN_ROWS_PER_CHUNK: Final = 8
_BUCKET_WIDTHS_S: Final = (300, 900, 3600, 21_600, 86_400, 604_800)
_MAX_BUCKETS: Final = 96


@attrs.frozen(slots=True)
class RateRange:
    low: int
    median: int
    high: int

    @classmethod
    def from_rates(cls, rates: Iterable[int]) -> "RateRange":
        ordered = sorted(rates)
        return cls(ordered[0], statistics.median_low(ordered), ordered[-1])


@attrs.frozen(slots=True)
class PriceBucket:
    """Rates of the jobs that were claimed within one bucket of time, which begins at `since`."""

    since: int
    jobs: int
    rate_in: RateRange
    rate_out: RateRange


@attrs.frozen(slots=True)
class PaidRates:
    claimed_at: int
    rate_in: int
    rate_out: int


# The conditions compare rows of columns, so that PostgreSQL uses the index on the model. With the index on ordinals, it
# would read a whole chunk for the few jobs of a rare model.
_SELECT_PAID_RATES: Final = f"""
with chunks as materialized (
    select chunk from job_counts where list = 1 and key = int8send($1) and bits = {_CHUNK_BITS}
        and state = {JobState.SETTLED} order by chunk desc limit {_MAX_CHUNKS}),
share as materialized (
    select greatest({_MIN_ROWS_PER_CHUNK}, {_MAX_SAMPLE_ROWS} / greatest(count(*), 1)) as most from chunks)
select paid.*, m.model_id is not null as known, {ARE_JOBS_COUNTED} as counted, {SNAPSHOT_COLUMNS}
    from index_position p left join models m on m.model_id = $1
    left join lateral (select j.claimed_at, j.rate_in::text, j.rate_out::text from chunks c cross join share s
        cross join lateral (select j.claimed_at, j.rate_in, j.rate_out from jobs j
            where (j.model_id, j.state, j.ordinal) >= ($1, {JobState.SETTLED}, c.chunk << {_CHUNK_BITS})
                and (j.model_id, j.state, j.ordinal) < ($1, {JobState.SETTLED}, c.chunk + 1 << {_CHUNK_BITS})
            order by j.model_id desc, j.state desc, j.ordinal desc limit s.most) j) paid on true
"""


async def read_paid_rates(database: Database, model_id: int) -> tuple[Snapshot, list[PaidRates] | None]:
    """Return the sample of the model's paid rates, or None for an unknown model. Raise Retryable until the first
    backfill has counted the jobs."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(_SELECT_PAID_RATES, model_id)
    snapshot = snapshot_from_rows(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    if not rows[0]["known"]:
        return snapshot, None
    return snapshot, [PaidRates(row[0], int(row[1]), int(row[2])) for row in rows if row[0] is not None]


def group_into_buckets(paid: list[PaidRates]) -> tuple[int, list[PriceBucket]]:
    """Return the width of the buckets in seconds, and the buckets that contain jobs, oldest first.

    >>> group_into_buckets([PaidRates(7200, 5, 9), PaidRates(7201, 7, 9)])[1][0].rate_in
    RateRange(low=5, median=5, high=7)
    """
    if not paid:
        return _BUCKET_WIDTHS_S[0], []
    span = max(one.claimed_at for one in paid) - min(one.claimed_at for one in paid)
    width = next((width for width in _BUCKET_WIDTHS_S if span // width < _MAX_BUCKETS), _BUCKET_WIDTHS_S[-1])
    by_time: dict[int, list[PaidRates]] = {}
    for one in paid:
        by_time.setdefault(one.claimed_at // width * width, []).append(one)
    return width, [
        PriceBucket(
            since,
            len(jobs),
            RateRange.from_rates(one.rate_in for one in jobs),
            RateRange.from_rates(one.rate_out for one in jobs),
        )
        for since, jobs in sorted(by_time.items())
    ]


async def read_counts(database: Database) -> tuple[Snapshot, dict[int, int]]:
    """Return the number of jobs by state. The query reads a few rows per 2^18 jobs."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select c.state, c.jobs, {ARE_JOBS_COUNTED} as counted, {SNAPSHOT_COLUMNS} from index_position p"
            " left join lateral (select state, sum(jobs)::bigint as jobs from job_counts"
            " where list = 0 and key = ''::bytea and bits = 18 group by state) c on true"
        )
    snapshot = snapshot_from_rows(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    return snapshot, {row["state"]: row["jobs"] for row in rows if row["state"] is not None}


@attrs.frozen(slots=True)
class SlotCounts:
    """Number of listed providers that polled recently, and of their slots and free slots."""

    providers: int
    slots: int
    free_slots: int


async def read_slots(database: Database, liveness_ms: int) -> tuple[Snapshot, SlotCounts]:
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select {SNAPSHOT_COLUMNS}, s.* from index_position p left join lateral (select count(*) as providers,"
            " coalesce(sum(capacity(v)), 0)::bigint as slots,"
            " coalesce(sum(greatest(0, capacity(v) - v.active_jobs)), 0)::bigint as free from providers v"
            " where v.listed and v.provider_id in (select l.provider_id from liveness l"
            f" where l.seen_at > {LIVE_SINCE_SQL.format('$1::bigint')})) s on true",
            liveness_ms,
        )
    return snapshot_from_rows(rows), SlotCounts(rows[0]["providers"], rows[0]["slots"], rows[0]["free"])


# The block number of events has a BRIN index. A comparison with the whole array scans this index once, and then reads
# only a few pages of the table for each number.
_SELECT_BLOCK_TIMES: Final = f"""
select t.number, t.time, {SNAPSHOT_COLUMNS} from index_position p left join lateral (
    select number, time from index_blocks where number = any($1::bigint[])
    union
    (select distinct on (block_number) block_number, block_time from events
        where block_number = any($1::bigint[]) and kind <> 7 order by block_number, id desc)) t on true
"""


async def read_block_times(database: Database, numbers: Sequence[int]) -> tuple[Snapshot, dict[int, int]]:
    """Return the Unix times of blocks. The result has only blocks near the head and blocks with an event in the log."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(_SELECT_BLOCK_TIMES, list(numbers))
    return snapshot_from_rows(rows), {row["number"]: row["time"] for row in rows if row["number"] is not None}
