"""History that outlives the jobs' entries: jobs by day and model, and the provider's standing by hour.

The standing is the reputation and the granted capacity. Both tables have a bounded size: one row per day and model,
and one row per hour in which the standing changed.
"""

import json
import sqlite3
from datetime import UTC, datetime
from typing import Final

import attrs

from common import quotes
from svcd.journal.book_row import Job

DAY_RETENTION_S: Final = 400 * 86_400
STANDING_RETENTION_S: Final = 90 * 86_400
_HOUR_S: Final = 3600

Statement = tuple[str, tuple[object, ...]]

SCHEMA: Final = """
create table if not exists days (
    day text not null,                  -- UTC, of the job's end
    model text not null,
    settled integer not null,
    earned text not null,               -- base units, which may exceed 64 bits
    failed integer not null,            -- ended without a settle
    primary key (day, model)
) strict, without rowid;
create table if not exists standing (
    hour integer primary key,           -- Unix seconds / 3600
    reputation integer not null,
    capacity integer not null
) strict;
"""

# Run this statement before the statement that stores the job's end. A job that has already ended is not counted again.
_COUNT_END: Final = (
    "insert into days select ?, model, ?, job_cost(row, case when ? then completion_tok end), ? from jobs"
    " where job_id = ? and state not in ('settled', 'failed', 'given_up')"
    " on conflict (day, model) do update set settled = settled + excluded.settled,"
    " earned = decimal_sum(earned, excluded.earned), failed = failed + excluded.failed"
)
_UPSERT_STANDING: Final = (
    "insert into standing values (?, ?, ?)"
    " on conflict (hour) do update set reputation = excluded.reputation, capacity = excluded.capacity"
)
_SELECT_FAILURES: Final = (
    "select job_id, model, coalesce(reason, 'unknown'), updated from jobs where state in ('failed', 'given_up')"
    " order by updated desc limit ?"
)


@attrs.frozen(slots=True)
class DailyModelCounts:
    """Jobs of one model that ended on one day. `earned` is in base units of the payment token."""

    day: str
    model: str
    settled: int
    earned: int
    failed: int


@attrs.frozen(slots=True)
class Standing:
    """Reputation and granted capacity since `at`, in Unix seconds rounded down to the hour."""

    at: int
    reputation: int
    capacity: int


@attrs.frozen(slots=True)
class FailedJob:
    job_id: bytes
    model: str
    reason: str
    at: float


def add_sql_functions(connection: sqlite3.Connection) -> None:
    """Add the SQL functions that this module's statements call. The functions must not raise."""
    connection.create_function("job_cost", 2, _job_cost_sql, deterministic=True)
    connection.create_function("decimal_sum", 2, lambda one, other: str(int(one) + int(other)), deterministic=True)


def _job_cost_sql(row: str, completion_tok: int | None) -> str:
    """Return the provider's payment for a settled job, or 0 if its units are unknown because the journal was lost."""
    if completion_tok is None:
        return "0"
    job = Job.read(json.loads(row))
    used = min(completion_tok, job.units_out)
    return str(quotes.cost(job.rate_in, job.rate_out, job.units_in, job.units_out, completion_tok=used))


def count_ended_job(job_id: bytes, state: str, at: float) -> list[Statement]:
    """Return the statements that count the end of a job. A job that was never claimed is not counted."""
    if state == "not_claimed":
        return []
    settled = int(state == "settled")
    return [(_COUNT_END, (utc_day(at), settled, settled, 1 - settled, job_id))]


def store_standing(reputation: int, capacity: int, at: float) -> Statement:
    """Return the statement that stores the standing of the current hour."""
    return _UPSERT_STANDING, (int(at) // _HOUR_S, reputation, capacity)


def delete_old_history(now: float) -> list[Statement]:
    return [
        ("delete from days where day < ?", (utc_day(now - DAY_RETENTION_S),)),
        ("delete from standing where hour < ?", (int(now - STANDING_RETENTION_S) // _HOUR_S,)),
    ]


def read_daily_counts(connection: sqlite3.Connection, since: float) -> list[DailyModelCounts]:
    rows = connection.execute(
        "select day, model, settled, earned, failed from days where day >= ? order by day, model", (utc_day(since),)
    )
    return [DailyModelCounts(day, model, settled, int(earned), failed) for day, model, settled, earned, failed in rows]


def read_standing(connection: sqlite3.Connection, since: float) -> list[Standing]:
    """Return the standing at `since`, and all later changes."""
    first = int(since) // _HOUR_S
    rows = connection.execute(
        "select hour, reputation, capacity from standing"
        " where hour >= coalesce((select max(hour) from standing where hour <= ?), ?) order by hour",
        (first, first),
    )
    return [Standing(hour * _HOUR_S, reputation, capacity) for hour, reputation, capacity in rows]


def read_failures(connection: sqlite3.Connection, limit: int) -> list[FailedJob]:
    """Return the newest jobs in the journal that ended without a settle."""
    return [FailedJob(*row) for row in connection.execute(_SELECT_FAILURES, (limit,))]


def utc_day(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).date().isoformat()
