"""Pages of the job book, in the order of posting.

A page is read from the database index that has the page's list in this order. The table `job_counts` has the number of
a list's jobs in each chunk of 4096 ordinals, and in each large chunk (64 chunks). With these counts, the statement of a
page deep inside a list starts in the chunk of the page's offset, and walks less than one chunk. There are counts for
the list of all jobs and for the lists of one model, owner or provider, each with or without a state and
`posted_before`. A list by two of these keys, or by rates, has no counts. The statement of such a list walks a longer
list and filters its jobs.
"""

from typing import Final

import attrs

from common.api import limits
from common.api.states import JobState
from coordinatord.api.book.jobs_sql import JOB_COLUMNS, JobRow, job_row
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import ARE_JOBS_COUNTED, SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

PAGE_TIMEOUT_S: Final = 10.0
_STATES: Final = {state.name.capitalize(): state for state in JobState}
# Chunks of 2^12 and of 2^18 ordinals, as in the SQL function `count_jobs`.
_CHUNK_BITS: Final = 12
_LARGE_CHUNK_BITS: Final = 18
_CHUNKS_PER_LARGE_CHUNK_BITS: Final = _LARGE_CHUNK_BITS - _CHUNK_BITS  # a large chunk is 2^6 chunks
_MAX_WALKED_ROWS: Final = 1000  # up to this offset, walking costs less than adding up counts
_ALL_JOBS_KEY: Final = (0, "''::bytea")


@attrs.frozen(slots=True, kw_only=True)
class JobFilter:
    state: str | None = None
    model_id: int | None = None
    provider_id: int | None = None
    owner: bytes | None = None
    min_rate_in: int | None = None
    min_rate_out: int | None = None
    posted_before: int | None = None
    newest_first: bool = False

    @property
    def has_counts(self) -> bool:
        """Return True if `job_counts` has the counts of this list."""
        keys = [key for key in (self.owner, self.provider_id, self.model_id) if key is not None]
        return len(keys) <= 1 and self.min_rate_in is None and self.min_rate_out is None


@attrs.frozen(slots=True)
class PageStatement:
    """SQL statement of a page, with its parameter values."""

    sql: str
    values: list[object]
    uses_counts: bool


async def read_page(
    database: Database, job_filter: JobFilter, limit: int, offset: int
) -> tuple[Snapshot, list[JobRow]]:
    """Return a page of jobs and its snapshot. Raise Retryable after PAGE_TIMEOUT_S, or if the page needs counts and the
    first backfill has not counted the jobs yet."""
    statement = page_statement(job_filter, limit, offset)
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(statement.sql, *statement.values, timeout=PAGE_TIMEOUT_S)
    snapshot = snapshot_from_rows(rows)
    if statement.uses_counts and not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    return snapshot, [job_row(row) for row in rows if row["job_id"] is not None]


def page_statement(job_filter: JobFilter, limit: int, offset: int) -> PageStatement:
    """Return the statement of a page. The statement first finds the ordinals of the page's jobs, so that it reads whole
    rows only for these jobs."""
    job_list = _JobListSql(job_filter)
    uses_counts = offset > _MAX_WALKED_ROWS and job_filter.has_counts
    if uses_counts:
        walk = f"select w.ordinal from found f cross join lateral ({job_list.walk_from_chunk_sql(limit)}) w"
        counts = job_list.offset_chunk_sql(offset)
    else:
        walk, counts = job_list.walk_sql(limit, offset), ""
    sql = (
        f"{job_list.posted_before_sql()}{counts} select {JOB_COLUMNS}, {SNAPSHOT_COLUMNS},"
        f" {ARE_JOBS_COUNTED} as counted from index_position p"
        f" left join lateral (select j.* from ({walk}) w join jobs j on j.ordinal = w.ordinal) j"
        f" on true order by j.ordinal {job_list.direction}"
    )
    return PageStatement(sql, job_list.values, uses_counts)


class _JobListSql:
    """SQL parts of the statement that reads one list of jobs."""

    def __init__(self, job_filter: JobFilter) -> None:
        self.values: list[object] = []
        self.direction = "desc" if job_filter.newest_first else "asc"
        self._state = None if job_filter.state is None else _STATES[job_filter.state]
        self._key = _ALL_JOBS_KEY  # number and key of the list in job_counts
        self._conditions: list[str] = []  # the first condition selects the list to read
        # The filter whose list is probably shortest comes first, because the statement reads the list of the first
        # condition.
        for number, column, key, kind, value in (
            (2, "owner", "{}", "bytea", job_filter.owner),
            (3, "provider_id", "int8send({})", "bigint", job_filter.provider_id),
            (1, "model_id", "int8send({})", "bigint", job_filter.model_id),
        ):
            if value is not None:
                bound = self._bind_value(value, kind)
                if not self._conditions:
                    self._key = (number, key.format(bound))
                self._conditions.append(f"j.{column} = {bound}")
        for column, rate in (("rate_in", job_filter.min_rate_in), ("rate_out", job_filter.min_rate_out)):
            if rate is not None:
                self._conditions.append(f"j.{column} >= {self._bind_value(rate, 'numeric')}")
        before = job_filter.posted_before
        self._posted_before = None if before is None else self._bind_value(before, "bigint")

    def posted_before_sql(self) -> str:
        """Return the start of the statement, which finds the last ordinal within `posted_before`."""
        if self._posted_before is None:
            return ""
        return (
            "with bound as materialized (select max(b.ordinal) as ordinal from jobs b where b.posted_block ="
            f" (select max(c.posted_block) from jobs c where c.posted_block <= {self._posted_before}))"
        )

    def walk_sql(self, limit: int, offset: int) -> str:
        """Return the SQL that walks the list from its start."""
        # Usual limits are literals. For a parameter, the planner would assume a tenth of the list as the limit, and
        # plan every page of a long list again.
        is_usual = limit in (limits.DEFAULT_PAGE_ROWS, limits.MAX_PAGE_ROWS)
        return self._page_sql(
            [],
            str(limit) if is_usual else self._bind_value(limit, "bigint"),
            self._bind_value(offset, "bigint") if offset else "0",
        )

    def walk_from_chunk_sql(self, limit: int) -> str:
        """Return the SQL that walks the list from the start of the chunk `found`, in the list's direction."""
        ascending = self.direction == "asc"
        start = f"j.ordinal >= f.chunk << {_CHUNK_BITS}" if ascending else f"j.ordinal < f.chunk + 1 << {_CHUNK_BITS}"
        return self._page_sql([start], self._bind_value(limit, "bigint"), "f.skip")

    def offset_chunk_sql(self, offset: int) -> str:
        """Return the SQL that finds the chunk of the offset, and how many of the chunk's jobs come before the page."""
        start = self._bind_value(offset, "bigint")
        beyond = ""
        if self._posted_before is not None and self.direction == "desc":  # the counts also include newer jobs
            beyond = f" beyond as materialized (select {self._count_beyond_bound_sql()} as jobs),"
            start = f"({start} + (select jobs from beyond))"
        bits = _CHUNKS_PER_LARGE_CHUNK_BITS
        within = f"chunk >= far.chunk << {bits} and chunk < far.chunk + 1 << {bits}"
        return (
            f"{', ' if self._posted_before is not None else 'with '}{beyond}"
            f" far as materialized (select chunk, {start} - before as rest"
            f" from ({self._cumulative_counts_sql(_LARGE_CHUNK_BITS)}) c"
            f" where before + jobs > {start} order by chunk {self.direction} limit 1),"
            f" found as materialized (select c.chunk, (far.rest - c.before)::bigint as skip"
            f" from far cross join lateral ({self._cumulative_counts_sql(_CHUNK_BITS, within)}) c"
            f" where c.before + c.jobs > far.rest order by c.chunk {self.direction} limit 1)"
        )

    def _bind_value(self, value: object, kind: str) -> str:
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def _chunk_counts_sql(self, bits: int, *conditions: str) -> str:
        number, key = self._key
        states = [f"state = {self._state}"] if self._state is not None else []
        return " and ".join(
            [f"from job_counts where list = {number} and key = {key} and bits = {bits}", *states, *conditions]
        )

    def _cumulative_counts_sql(self, bits: int, *conditions: str) -> str:
        """Return the SQL that selects the list's chunks, with the number of jobs in each chunk and in all chunks before
        it."""
        before = f"sum(sum(jobs)) over (order by chunk {self.direction}) - sum(jobs)"
        counts = self._chunk_counts_sql(bits, *conditions)
        return f"select chunk, sum(jobs) as jobs, {before} as before {counts} group by chunk"

    def _count_beyond_bound_sql(self) -> str:
        """Return the SQL that counts the list's jobs beyond the bound, the last ordinal within `posted_before`. The SQL
        adds the counts of large chunks, of small chunks, and of jobs between the bound and the end of its chunk."""
        bound, small = "(select ordinal from bound)", f"(select ordinal >> {_CHUNK_BITS} from bound)"
        large = f"({small} >> {_CHUNKS_PER_LARGE_CHUNK_BITS})"
        large_end = f"({large} + 1) << {_CHUNKS_PER_LARGE_CHUNK_BITS}"
        sums = [
            f"(select coalesce(sum(jobs), 0) {self._chunk_counts_sql(_LARGE_CHUNK_BITS, f'chunk > {large}')})",
            f"(select coalesce(sum(jobs), 0)"
            f" {self._chunk_counts_sql(_CHUNK_BITS, f'chunk > {small}', f'chunk < {large_end}')})",
        ]
        one_by_one = [f"j.ordinal > {bound}", f"j.ordinal < ({small} + 1) << {_CHUNK_BITS}"]
        return " + ".join([*sums, *(f"(select count(*) {scan})" for scan in self._state_scans(one_by_one))])

    def _page_sql(self, conditions: list[str], limit: str, offset: str) -> str:
        if self._posted_before is not None:
            conditions = [*conditions, "j.ordinal <= (select ordinal from bound)"]
        order, scans = f"order by ordinal {self.direction}", self._state_scans(conditions)
        if len(scans) == 1:
            return f"select j.ordinal {scans[0]} {order} limit {limit} offset {offset}"
        # Every scan has its own order and limit, so that PostgreSQL merges the scans instead of sorting.
        merged = [f"(select j.ordinal {scan} {order} limit {limit} + {offset})" for scan in scans]
        return f"{' union all '.join(merged)} {order} limit {limit} offset {offset}"

    def _state_scans(self, conditions: list[str]) -> list[str]:
        """Return one scan per state, because the database index of a list has only the jobs of one state in order."""
        if self._state is not None:
            states = [f"j.state = {self._state}"]
        elif self._key != _ALL_JOBS_KEY:
            states = [f"j.state = {state}" for state in _STATES.values()]
        else:
            states = ["true"]
        return [f"from jobs j where {' and '.join([state, *self._conditions, *conditions])}" for state in states]
