"""Jobs as the index holds them: by id, and summed up for an owner.

An open job whose expiry is before the time of the indexed block stands there as ended by expiry.
"""

from collections.abc import Collection, Sequence
from typing import Final

import asyncpg
import attrs

from common.api import limits
from common.api.states import EndedBecause, JobState
from common.messages.jobs import Order
from common.quotes import FeeTerms
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import JOBS_COUNTED, SNAPSHOT, Snapshot, snapshot_of

# Of `jobs j` beside `index_position p`. Numeric columns as text: they are answered as decimal strings, and Decimal in
# between costs more than the row. One that expired with very many others may have its mark still before it.
_UNMARKED: Final = f"j.state = {JobState.OPEN} and j.expires_at < p.block_time"
JOB_COLUMNS: Final = (
    "j.job_id, j.owner, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out,"
    " j.units_in, j.units_out, j.designated, j.expires_at, j.task_cid, j.posted_block,"
    f" case when {_UNMARKED} then {JobState.CANCELLED}::smallint else j.state end as state,"
    f" case when {_UNMARKED} then {EndedBecause.EXPIRY}::smallint else j.ended_because end as ended_because,"
    " j.provider_id, j.claimed_at, j.completion_tok, j.result_cid,"
    " (select name from models m where m.model_id = j.model_id) as model,"
    f" case when {_UNMARKED} or j.ended_because = {EndedBecause.EXPIRY} then j.expires_at else j.ended_at end"
    " as ended_at,"
    " (j.cap + div(j.cap * j.fee_bps, 10000) + j.gas_fee)::text as amount,"
    f" case when j.state = {JobState.SETTLED} then j.cost::text end as provider_paid, j.fee_bps, j.gas_fee::text"
)


@attrs.frozen(slots=True)
class JobRow:
    job_id: bytes
    owner: bytes
    c: bytes
    model_id: int
    sla_secs: int
    rate_in: str
    rate_out: str
    units_in: int
    units_out: int
    designated: int
    expires_at: int
    task_cid: str
    posted_block: int
    state: int
    ended_because: int
    provider_id: int
    claimed_at: int
    completion_tok: int
    result_cid: str | None
    model: str | None
    ended_at: int | None  # None, too, of a job that ended before this was kept
    amount: str
    provider_paid: str | None  # None unless settled
    fee_bps: int
    gas_fee: str

    @property
    def reclaimable_at(self) -> int | None:
        """Last second in which its provider can settle it: after that anybody may reclaim it. None unless claimed."""
        return self.claimed_at + self.sla_secs if self.state == JobState.CLAIMED else None


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


@attrs.frozen(slots=True)
class OwnerSummary:
    """Of one model, or of all when `model_id` is None."""

    model_id: int | None
    jobs: int
    completed: int
    priced: int
    escrowed: str


_JOB_FIELDS: Final = attrs.fields_dict(JobRow)


def job_row(record: asyncpg.Record) -> JobRow:
    """Of a record whose first columns are JOB_COLUMNS."""
    return JobRow(*record[: len(_JOB_FIELDS)])


_BY_IDS: Final = f"select {JOB_COLUMNS}, {SNAPSHOT} from index_position p left join jobs j on j.job_id = any($1)"


async def read_by_ids(line: PreparedConnection, job_ids: Sequence[bytes]) -> tuple[Snapshot, dict[bytes, JobRow]]:
    rows = await line.fetch(_BY_IDS, job_ids)
    return snapshot_of(rows), {row["job_id"]: job_row(row) for row in rows if row["job_id"] is not None}


async def read_pace(connection: Connection) -> float | None:
    """Seconds between the blocks that may still be undone; None while there are too few, or all of one second."""
    pace: float | None = await connection.fetchval(
        "select (max(time) - min(time))::float8 / nullif(max(number) - min(number), 0) from index_blocks"
    )
    return pace or None


async def read_summary(database: Database, owner: bytes) -> tuple[Snapshot, list[OwnerSummary]]:
    """The total first, then one row per model. Every rate the chain takes is a whole number: all jobs are priced."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.*, {JOBS_COUNTED} as counted, {SNAPSHOT} from index_position p left join lateral ("
            "select model_id, sum(jobs)::bigint as jobs, sum(completed)::bigint as completed,"
            " coalesce(sum(escrowed), 0)::text as escrowed"
            " from owner_sums where owner = $1 group by grouping sets ((), (model_id))) s on true"
            " order by s.model_id nulls first",
            owner,
        )
    snapshot = snapshot_of(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has yet to count its jobs")
    return snapshot, [
        OwnerSummary(row["model_id"], row["jobs"] or 0, row["completed"] or 0, row["jobs"] or 0, row["escrowed"])
        for row in rows
    ]


async def read_posted_block(connection: Connection, job_id: bytes) -> int | None:
    """None while the index does not know the job."""
    block: int | None = await connection.fetchval("select posted_block from jobs where job_id = $1", job_id)
    return block


# Pages of the job book, in the order of posting.
#
# A list is read from the index that holds it in that order. `job_counts` says how many jobs of a list are in each chunk
# of 4096 ordinals, and in 64 of those together: a page far inside starts in the chunk that its offset falls into, and
# passes over less than a chunk. That goes for the lists of all jobs, of one model, of one owner and of one provider,
# each with or without a state and `posted_before`, in both orders. A list by two of those, or by rates, walks one of
# the lists that it is part of, and is given up after `_PATIENCE`.

_STATES: Final = {state.name.capitalize(): state for state in JobState}
_CHUNK_BITS: Final = 12  # as `count_jobs` has it: chunks of 2^12 ordinals,
_STEP_BITS: Final = 6  # and of 2^18
_WALKED: Final = 1000  # rows that are passed over sooner than counts are added up
_PATIENCE: Final = 10.0  # seconds
_ALL_LISTS: Final = (0, "''::bytea")


@attrs.frozen(slots=True)
class Statement:
    sql: str
    values: list[object]
    found: bool  # by the counts


@attrs.define(slots=True)
class _Values:
    given: list[object] = attrs.field(factory=list)

    def bind(self, value: object, kind: str) -> str:
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


async def read_page(database: Database, wanted: JobFilter, limit: int, offset: int) -> tuple[Snapshot, list[JobRow]]:
    """`Retryable` when it takes too long, or needs counts that a first backfill has yet to take."""
    statement = page_statement(wanted, limit, offset)
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(statement.sql, *statement.values, timeout=_PATIENCE)
    snapshot = snapshot_of(rows)
    if statement.found and not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has yet to count its jobs")
    return snapshot, [job_row(row) for row in rows if row["job_id"] is not None]


def page_statement(wanted: JobFilter, limit: int, offset: int) -> Statement:
    """Statement for a page: rows are completed from the page alone, not of all that an offset passes over."""
    listing = _Listing.of(wanted)
    found = offset > _WALKED and listing.is_counted
    if found:
        walk = f"select w.ordinal from found f cross join lateral ({listing.from_found(limit)}) w"
        counts = listing.found(offset)
    else:
        walk, counts = listing.walk(limit, offset), ""
    sql = (
        f"{listing.bound()}{counts} select {JOB_COLUMNS}, {SNAPSHOT}, {JOBS_COUNTED} as counted"
        f" from index_position p left join lateral (select j.* from ({walk}) w join jobs j on j.ordinal = w.ordinal) j"
        f" on true order by j.ordinal {listing.direction}"
    )
    return Statement(sql, listing.values.given, found)


@attrs.define(slots=True)
class _Listing:
    """`leading`: what the list is of, beside the state; `others`: what its rows are looked at for."""

    values: _Values
    direction: str
    key: tuple[int, str]  # in job_counts
    state: int | None
    leading: str | None
    others: list[str]
    posted_before: str | None

    @classmethod
    def of(cls, wanted: JobFilter) -> "_Listing":
        values = _Values()
        # The likely shortest first: whoever asks for several of them walks that one.
        lists = [
            (2, "j.owner = {}", "{}", "bytea", wanted.owner),
            (3, "j.provider_id = {}", "int8send({})", "bigint", wanted.provider_id),
            (1, "j.model_id = {}", "int8send({})", "bigint", wanted.model_id),
        ]
        key, conditions = _ALL_LISTS, list[str]()
        for number, condition, spelled, kind, value in lists:
            if value is not None:
                place = values.bind(value, kind)
                if not conditions:
                    key = (number, spelled.format(place))
                conditions.append(condition.format(place))
        for column, rate in (("rate_in", wanted.min_rate_in), ("rate_out", wanted.min_rate_out)):
            if rate is not None:
                conditions.append(f"j.{column} >= {values.bind(rate, 'numeric')}")
        led = key != _ALL_LISTS
        before = wanted.posted_before
        return cls(
            values,
            "desc" if wanted.newest_first else "asc",
            key,
            None if wanted.state is None else _STATES[wanted.state],
            conditions[0] if led else None,
            conditions[1:] if led else conditions,
            None if before is None else values.bind(before, "bigint"),
        )

    @property
    def is_counted(self) -> bool:
        return not self.others

    def bound(self) -> str:
        """The last ordinal that `posted_before` leaves, for the statement to begin with."""
        if self.posted_before is None:
            return ""
        return (
            "with bound as materialized (select max(b.ordinal) as ordinal from jobs b where b.posted_block ="
            f" (select max(c.posted_block) from jobs c where c.posted_block <= {self.posted_before}))"
        )

    def walk(self, limit: int, offset: int) -> str:
        # Written out where they are usual: of a limit that it does not know, the planner expects a tenth of the list,
        # and plans anew for every page of a long one.
        usual = limit in (limits.DEFAULT_PAGE, limits.LARGEST_PAGE)
        return self._page(
            [],
            str(limit) if usual else self.values.bind(limit, "bigint"),
            self.values.bind(offset, "bigint") if offset else "0",
        )

    def from_found(self, limit: int) -> str:
        """On from where the chunk that was found begins, in the list's direction."""
        ascending = self.direction == "asc"
        start = f"j.ordinal >= f.chunk << {_CHUNK_BITS}" if ascending else f"j.ordinal < f.chunk + 1 << {_CHUNK_BITS}"
        return self._page([start], self.values.bind(limit, "bigint"), "f.skip")

    def found(self, offset: int) -> str:
        """The chunk that the offset falls into, and how many of its jobs come before the page."""
        place = self.values.bind(offset, "bigint")
        beyond = ""
        if self.posted_before is not None and self.direction == "desc":  # the list begins with some that are left out
            beyond = f" beyond as materialized (select {self._beyond()} as jobs),"
            place = f"({place} + (select jobs from beyond))"
        within = f"chunk >= far.chunk << {_STEP_BITS} and chunk < far.chunk + 1 << {_STEP_BITS}"
        return (
            f"{', ' if self.posted_before is not None else 'with '}{beyond}"
            f" far as materialized (select chunk, {place} - before as rest"
            f" from ({self._summed(_CHUNK_BITS + _STEP_BITS)}) c"
            f" where before + jobs > {place} order by chunk {self.direction} limit 1),"
            f" found as materialized (select c.chunk, (far.rest - c.before)::bigint as skip"
            f" from far cross join lateral ({self._summed(_CHUNK_BITS, within)}) c"
            f" where c.before + c.jobs > far.rest order by c.chunk {self.direction} limit 1)"
        )

    def _counts(self, bits: int, *conditions: str) -> str:
        number, key = self.key
        states = [f"state = {self.state}"] if self.state is not None else []
        return " and ".join(
            [f"from job_counts where list = {number} and key = {key} and bits = {bits}", *states, *conditions]
        )

    def _summed(self, bits: int, *conditions: str) -> str:
        """The list's chunks with how many of its jobs are in each, and in those before it."""
        before = f"sum(sum(jobs)) over (order by chunk {self.direction}) - sum(jobs)"
        return f"select chunk, sum(jobs) as jobs, {before} as before {self._counts(bits, *conditions)} group by chunk"

    def _beyond(self) -> str:
        """Count of the list's jobs that were posted after the bound: by large chunks, small ones, and one by one."""
        bound, small = "(select ordinal from bound)", f"(select ordinal >> {_CHUNK_BITS} from bound)"
        large = f"({small} >> {_STEP_BITS})"
        sums = [
            f"(select coalesce(sum(jobs), 0) {self._counts(_CHUNK_BITS + _STEP_BITS, f'chunk > {large}')})",
            f"(select coalesce(sum(jobs), 0)"
            f" {self._counts(_CHUNK_BITS, f'chunk > {small}', f'chunk < ({large} + 1) << {_STEP_BITS}')})",
        ]
        one_by_one = [f"j.ordinal > {bound}", f"j.ordinal < ({small} + 1) << {_CHUNK_BITS}"]
        return " + ".join([*sums, *(f"(select count(*) {arm})" for arm in self._arms(one_by_one))])

    def _page(self, start: list[str], limit: str, offset: str) -> str:
        if self.posted_before is not None:
            start = [*start, "j.ordinal <= (select ordinal from bound)"]
        order, arms = f"order by ordinal {self.direction}", self._arms(start)
        if len(arms) == 1:
            return f"select j.ordinal {arms[0]} {order} limit {limit} offset {offset}"
        # Each in order by itself, and no more of one than of all: then they are merged, and not sorted.
        merged = [f"(select j.ordinal {arm} {order} limit {limit} + {offset})" for arm in arms]
        return f"{' union all '.join(merged)} {order} limit {limit} offset {offset}"

    def _arms(self, conditions: list[str]) -> list[str]:
        """One for each state: an index holds a list's jobs of one state in order."""
        conditions = [*([self.leading] if self.leading else []), *self.others, *conditions]
        if self.state is not None:
            states: list[str] = [f"j.state = {self.state}"]
        elif self.leading is not None:
            states = [f"j.state = {state}" for state in _STATES.values()]
        else:
            states = ["true"]
        return [f"from jobs j where {' and '.join([state, *conditions])}" for state in states]


# FeeTerms that jobs were posted on, from the index: every call of the registry about a job carries them.

POSTED_COLUMNS: Final = (
    "j.job_id, j.c, j.model_id, j.sla_secs, j.rate_in::text as rate_in, j.rate_out::text as rate_out, j.units_in,"
    " j.units_out, j.designated, j.expires_at, j.owner, j.fee_bps, j.gas_fee::text as gas_fee, j.pay_sig"
)
_POSTED_BY_IDS: Final = f"select {POSTED_COLUMNS} from jobs j where j.job_id = any($1)"


async def read_posted(line: PreparedConnection, job_ids: Sequence[bytes]) -> dict[bytes, RegisteredJob | None]:
    """None for a job that the index does not know."""
    found: dict[bytes, RegisteredJob | None] = dict.fromkeys(job_ids)
    found |= {row["job_id"]: posted_job(row) for row in await line.fetch(_POSTED_BY_IDS, job_ids)}
    return found


def posted_job(row: asyncpg.Record) -> RegisteredJob:
    """Of a record with POSTED_COLUMNS."""
    order = Order(
        c=row["c"],
        model_id=row["model_id"],
        sla_secs=row["sla_secs"],
        rate_in=int(row["rate_in"]),
        rate_out=int(row["rate_out"]),
        units_in=row["units_in"],
        units_out=row["units_out"],
        designated=row["designated"],
        expires_at=row["expires_at"],
    )
    return RegisteredJob(
        PostedOrder(order, row["owner"], FeeTerms(row["fee_bps"], int(row["gas_fee"]))), row["pay_sig"]
    )


# Claimed jobs whose provider missed its window, by the clock of the chain.


async def overdue_jobs(connection: Connection, limit: int, but_not: Collection[bytes]) -> dict[bytes, PostedOrder]:
    """Terms by job id, oldest claim first, without jobs named in `but_not`; none while the index is being rebuilt."""
    rows = await connection.fetch(
        f"select {POSTED_COLUMNS} from jobs j, index_position p"
        f" where j.state = {JobState.CLAIMED} and not p.rebuilding"
        " and j.claimed_at + j.sla_secs < p.block_time and not j.job_id = any($2::bytea[])"
        " order by j.claimed_at limit $1",
        limit,
        list(but_not),
    )
    return {row["job_id"]: posted_job(row).posted for row in rows}
