"""Write to and read from the journal's SQLite database: jobs, and the latest value of each counter.

    claiming ──► claimed ──► sealed ──► settled
        │           │           │
        │           ├───────────┴─────► failing ──► failed
        │           └───────────┴─────► given_up
        └──► not_claimed

A job that runs ahead of its claim goes from `claiming` directly to `sealed`, `failing` or `given_up` (`unpaid`).

Each state is written before the next step: `claiming` before the claim is sent, `sealed` (with the result) before
the settle is sent, and `failing` (with the reason) before the fail is sent.

A write function returns its SQL statement, so that one commit can include several statements. `svcd.journal.journal`
calls this synchronous module in one thread at a time.
"""

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import attrs

from common.daemon.process import Fatal
from svcd.journal import history
from svcd.journal.book_row import Job
from svcd.journal.history import Statement

JournalState = Literal["claiming", "claimed", "sealed", "failing", "settled", "failed", "given_up", "not_claimed"]

LIVE_STATES: Final[tuple[JournalState, ...]] = ("claiming", "claimed", "sealed", "failing")
# States after which a job is never claimed again. In the other states, a job may be claimed again, because its claim
# failed or a reorg removed the claim.
NOT_RECLAIMABLE_STATES: Final[tuple[JournalState, ...]] = ("sealed", "failing", "settled", "failed", "given_up")


# Version of the schema below. A change that an older svcd cannot read needs a higher version and a migration.
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
create table if not exists jobs (
    job_id blob primary key,
    model text not null,
    row text not null,
    state text not null,
    claim_sent real not null,
    completion_tok integer,
    result blob,
    result_length integer,
    result_cid text,
    reason text,
    updated real not null
) strict;
create index if not exists jobs_by_state on jobs (state);
create table if not exists items (
    job_id blob not null,
    number integer not null,
    result blob not null,               -- encrypted: an item of a running bundle, or an entry of an open tab
    primary key (job_id, number)
) strict, without rowid;
create trigger if not exists items_done after update of state on jobs
when new.state not in ('claiming', 'claimed') begin
    delete from items where job_id = new.job_id;
end;
create table if not exists latest (name text primary key, value integer not null) strict;
create table if not exists home (chain_id integer not null, job_registry text not null, wallet text not null) strict;
create table if not exists owners (
    owner text primary key,
    settled integer not null,           -- all settled jobs
    unpaid integer not null,            -- jobs that ran ahead of a claim which was then refused
    settled_since integer not null      -- jobs settled since the last unpaid one
) strict;
create trigger if not exists owner_settled after update of state on jobs
when new.state = 'settled' and old.state <> 'settled' begin
    insert into owners values (json_extract(new.row, '$.owner'), 1, 0, 0)
        on conflict (owner) do update set settled = settled + 1, settled_since = settled_since + 1;
end;
create trigger if not exists owner_unpaid after update of state on jobs
when new.reason = 'unpaid' and new.state = 'given_up' and old.state <> 'given_up' begin
    insert into owners values (json_extract(new.row, '$.owner'), 0, 1, 0)
        on conflict (owner) do update set unpaid = unpaid + 1, settled_since = 0;
end;
"""
_LIVE_SQL: Final = ", ".join(f"'{state}'" for state in LIVE_STATES)

# These statements are built from this module's constants. Values are parameters.
_DELETE_ENDED: Final = f"delete from jobs where updated < ? and state not in ({_LIVE_SQL})"  # noqa: S608
_NOT_RECLAIMABLE_SQL: Final = ", ".join(f"'{state}'" for state in NOT_RECLAIMABLE_STATES)
_INSERT_JOB: Final = "insert into jobs (job_id, model, row, state, claim_sent, updated) values (?, ?, ?, ?, ?, ?)"
_INSERT_CLAIMING: Final = (
    f"{_INSERT_JOB} on conflict (job_id) do update set model = excluded.model, row = excluded.row,"
    " state = excluded.state, claim_sent = excluded.claim_sent, updated = excluded.updated, completion_tok = null,"
    " result = null, result_length = null, result_cid = null, reason = null"
    f" where jobs.state not in ({_NOT_RECLAIMABLE_SQL})"
)
_ENTRY_COLUMNS: Final = "row, model, state, claim_sent, completion_tok, result_length, result_cid, reason"
_SELECT_LIVE: Final = f"select {_ENTRY_COLUMNS} from jobs where state in ({_LIVE_SQL}) order by claim_sent limit ?"  # noqa: S608


@attrs.frozen(slots=True)
class JobEntry:
    """Journal entry of one job, without the job's result."""

    job: Job
    model: str
    state: JournalState
    claim_sent_at: float
    completion_tok: int | None
    result_length: int | None
    result_cid: str | None
    reason: str | None


@attrs.frozen(slots=True)
class JournalBinding:
    """Wallet and market that the journal belongs to."""

    chain_id: int
    job_registry: str
    wallet: str

    def __str__(self) -> str:
        return f"chain {self.chain_id}, job registry {self.job_registry}, wallet {self.wallet}"


@attrs.frozen(slots=True)
class OwnerRecord:
    """Counts of one owner's jobs. `settled_jobs_since_unpaid` counts the jobs settled since the last unpaid job."""

    settled_jobs: int = 0
    unpaid_jobs: int = 0
    settled_jobs_since_unpaid: int = 0


def open_database(path: Path) -> sqlite3.Connection:
    """Open the journal's database with durable commits, readable only by the daemon's user.

    Raise `Fatal` if the file cannot be used as a journal.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        for private in path.parent.glob(f"{path.name}*"):  # SQLite gives new -wal and -shm files the database's mode
            private.chmod(0o600)
    except OSError as broken:
        raise Fatal(f"the journal {path} cannot be used: {broken.strerror}") from None
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        _create_schema(connection)
    except sqlite3.DatabaseError as broken:
        connection.close()
        raise Fatal(f"the journal {path} cannot be used: {broken}") from None
    except Fatal:
        connection.close()
        raise
    return connection


def _create_schema(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("pragma user_version").fetchone()
    if version > _SCHEMA_VERSION:
        raise Fatal(
            f"the journal was written by a newer svcd: its format is {version}, expected at most {_SCHEMA_VERSION};"
            " install that release, or use another state_directory"
        )
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.executescript(_SCHEMA + history.SCHEMA)
    history.add_sql_functions(connection)
    connection.execute(f"pragma user_version = {_SCHEMA_VERSION}")


def insert_claiming(job: Job, model: str, at: float) -> Statement:
    """Return the insert of an entry. The insert does not replace an entry in one of the `NOT_RECLAIMABLE_STATES`."""
    return _INSERT_CLAIMING, (job.job_id, model, json.dumps(job.as_row()), "claiming", at, at)


def insert_adopted(job: Job, model: str, at: float) -> Statement:
    """Return the insert of an adopted job: claimed on the chain, but missing or `not_claimed` in the journal."""
    values = (job.job_id, model, json.dumps(job.as_row()), "claimed", float(job.claimed_at), at)
    return (
        "insert or replace into jobs (job_id, model, row, state, claim_sent, updated) values (?, ?, ?, ?, ?, ?)",
        values,
    )


def mark_claimed(job_id: bytes, at: float) -> Statement:
    """Return the update to `claimed`. A job that ran ahead and is already in a later state keeps that state."""
    return "update jobs set state = 'claimed', updated = ? where job_id = ? and state = 'claiming'", (at, job_id)


def mark_sealed(job_id: bytes, completion_tok: int, inline: bytes | None, length: int, at: float) -> Statement:
    return (
        "update jobs set state = 'sealed', completion_tok = ?, result = ?, result_length = ?, updated = ?"
        " where job_id = ?",
        (completion_tok, inline, length, at, job_id),
    )


def insert_item(job_id: bytes, number: int, result: bytes) -> Statement:
    """Return the insert of a bundle's finished item. A trigger deletes the items when the job leaves `claimed`."""
    return "insert or replace into items values (?, ?, ?)", (job_id, number, result)


def mark_uploaded(job_id: bytes, cid: str, at: float) -> Statement:
    return "update jobs set result_cid = ?, updated = ? where job_id = ?", (cid, at, job_id)


def mark_failing(job_id: bytes, reason: str, at: float) -> Statement:
    return "update jobs set state = 'failing', reason = ?, updated = ? where job_id = ?", (reason, at, job_id)


def mark_ended(job_id: bytes, state: JournalState, reason: str | None, at: float) -> Statement:
    """Return the update that stores a job's final state and reason, and deletes the job's result."""
    return (
        "update jobs set state = ?, reason = ?, result = null, updated = ? where job_id = ?",
        (state, reason, at, job_id),
    )


def delete_ended(before: float) -> Statement:
    return _DELETE_ENDED, (before,)


def store_value(name: str, value: int) -> Statement:
    return "insert into latest values (?, ?) on conflict (name) do update set value = excluded.value", (name, value)


def insert_binding(binding: JournalBinding) -> Statement:
    return "insert into home values (?, ?, ?)", (binding.chain_id, binding.job_registry, binding.wallet)


def read_live_entries(connection: sqlite3.Connection, limit: int = -1) -> list[JobEntry]:
    """Return the jobs that have not ended, oldest first. A negative limit returns all."""
    rows = connection.execute(_SELECT_LIVE, (limit,))
    return [JobEntry(Job.read(json.loads(row[0])), *row[1:]) for row in rows]


def read_job(connection: sqlite3.Connection, job_id: bytes) -> Job | None:
    row = connection.execute("select row from jobs where job_id = ?", (job_id,)).fetchone()
    return Job.read(json.loads(row[0])) if row is not None else None


def read_job_state(connection: sqlite3.Connection, job_id: bytes) -> JournalState | None:
    row = connection.execute("select state from jobs where job_id = ?", (job_id,)).fetchone()
    return row[0] if row is not None else None


def find_unknown_jobs(connection: sqlite3.Connection, job_ids: Iterable[bytes]) -> set[bytes]:
    """Return the ids of jobs that have no entry, or an entry in the state `not_claimed`."""
    known = "select 1 from jobs where job_id = ? and state != 'not_claimed'"
    return {job_id for job_id in job_ids if connection.execute(known, (job_id,)).fetchone() is None}


def read_failed_ids(connection: sqlite3.Connection) -> set[bytes]:
    """Return the ids of jobs that ended without a settle."""
    return {job_id for (job_id,) in connection.execute("select job_id from jobs where state in ('failed', 'given_up')")}


def read_items(connection: sqlite3.Connection, job_id: bytes) -> dict[int, bytes]:
    """Return the finished items of a job, encrypted, by number."""
    return dict(connection.execute("select number, result from items where job_id = ?", (job_id,)))


def read_result(connection: sqlite3.Connection, job_id: bytes) -> bytes | None:
    row = connection.execute("select result from jobs where job_id = ?", (job_id,)).fetchone()
    return row[0] if row is not None else None


def read_value(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("select value from latest where name = ?", (name,)).fetchone()
    return int(row[0]) if row is not None else 0


def read_owner_record(connection: sqlite3.Connection, owner: bytes) -> OwnerRecord:
    row = connection.execute(
        "select settled, unpaid, settled_since from owners where owner = ?", ("0x" + owner.hex(),)
    ).fetchone()
    return OwnerRecord(*row) if row is not None else OwnerRecord()


def read_binding(connection: sqlite3.Connection) -> JournalBinding | None:
    """Return the wallet and market of the journal, or None for a new journal."""
    row = connection.execute("select chain_id, job_registry, wallet from home").fetchone()
    return JournalBinding(*row) if row is not None else None


def read_job_counts(connection: sqlite3.Connection) -> dict[tuple[str, str | None], int]:
    """Return the number of jobs by state and reason."""
    rows = connection.execute("select state, reason, count(*) from jobs group by state, reason order by state, reason")
    return {(state, reason): count for state, reason, count in rows}
