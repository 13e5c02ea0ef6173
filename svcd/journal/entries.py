"""Journal entries in SQLite: one table of jobs, one of numbers that must only grow.

    claiming ──► claimed ──► sealed ──► settled
        │           │           │
        │           ├───────────┴─────► failing ──► failed
        │           └───────────┴─────► given_up
        └──► not_claimed

A job that runs ahead of its claim goes from `claiming` directly to `sealed`, `failing` or `given_up` (`unpaid`).

A state is written before the step that it names: `claiming` before the claim is sent, `sealed` (with the result) before
the settle, `failing` (with the reason) before the fail.

Writers return statements, so that several share one commit. The module is synchronous, and one thread uses it at a time
(`svcd.journal.journal`).
"""

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import attrs

from common.daemon.process import Fatal
from svcd.journal.book_row import Job

JournalState = Literal["claiming", "claimed", "sealed", "failing", "settled", "failed", "given_up", "not_claimed"]

LIVE: Final[tuple[JournalState, ...]] = ("claiming", "claimed", "sealed", "failing")
# Of a job that is not claimed anew. One whose claim came to nothing is; and one that was claimed, and has no result
# yet: a reorganisation took the claim.
NOT_AGAIN: Final[tuple[JournalState, ...]] = ("sealed", "failing", "settled", "failed", "given_up")


Statement = tuple[str, tuple[object, ...]]

# Of the tables below. A change that an older svcd could not live with raises it, and brings older journals along.
_VERSION: Final = 1
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
create table if not exists latest (name text primary key, value integer not null) strict;
create table if not exists home (chain_id integer not null, job_registry text not null, wallet text not null) strict;
create table if not exists owners (
    owner text primary key,
    settled integer not null,           -- jobs, ever
    unpaid integer not null,            -- jobs that were run ahead for nothing
    settled_since integer not null      -- the last of these
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
_LIVE: Final = ", ".join(f"'{state}'" for state in LIVE)
# Put together from this package's constants; values are parameters.
_FORGET: Final = f"delete from jobs where updated < ? and state not in ({_LIVE})"  # noqa: S608
_NOT_AGAIN: Final = ", ".join(f"'{state}'" for state in NOT_AGAIN)
_NEW: Final = "insert into jobs (job_id, model, row, state, claim_sent, updated) values (?, ?, ?, ?, ?, ?)"
_CLAIMING: Final = (
    f"{_NEW} on conflict (job_id) do update set model = excluded.model, row = excluded.row, state = excluded.state,"
    " claim_sent = excluded.claim_sent, updated = excluded.updated, completion_tok = null, result = null,"
    " result_length = null, result_cid = null, reason = null"
    f" where jobs.state not in ({_NOT_AGAIN})"
)
_COLUMNS: Final = "row, model, state, claim_sent, completion_tok, result_length, result_cid, reason"
_READ_LIVE: Final = f"select {_COLUMNS} from jobs where state in ({_LIVE}) order by claim_sent"  # noqa: S608


@attrs.frozen(slots=True)
class JobEntry:
    """One job. `result` is None when it lies in a file of its own, or is not there (any more)."""

    job: Job
    model: str
    state: JournalState
    claim_sent: float
    completion_tok: int | None
    result_length: int | None
    result_cid: str | None
    reason: str | None


@attrs.frozen(slots=True)
class Home:
    """Whose jobs these are: of one wallet, at one market. Elsewhere they mean nothing, and would be given up."""

    chain_id: int
    job_registry: str
    wallet: str

    def __str__(self) -> str:
        return f"chain {self.chain_id}, job registry {self.job_registry}, wallet {self.wallet}"


@attrs.frozen(slots=True)
class OwnerRecord:
    """How an owner's jobs ended here. `settled_since`: since the last that was run ahead for nothing."""

    settled: int = 0
    unpaid: int = 0
    settled_since: int = 0


def open_database(path: Path) -> sqlite3.Connection:
    """Open the journal's database. Every commit is on the disk when it returns.

    Raises `Fatal` for a file that is not this journal's. The files are for the daemon's user alone.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        for private in path.parent.glob(f"{path.name}*"):  # SQLite gives new -wal and -shm files the database's mode
            private.chmod(0o600)
    except OSError as broken:
        raise Fatal(f"the journal {path} cannot be used: {broken.strerror}") from None
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        _set_up(connection)
    except sqlite3.DatabaseError as broken:
        connection.close()
        raise Fatal(f"the journal {path} cannot be used: {broken}") from None
    except Fatal:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("pragma user_version").fetchone()
    if version > _VERSION:
        raise Fatal(f"the journal was written by a newer svcd (its format is {version}, this one knows {_VERSION})")
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.executescript(_SCHEMA)
    connection.execute(f"pragma user_version = {_VERSION}")


def claiming(job: Job, model: str, at: float) -> Statement:
    """An entry of an earlier attempt gives way; one of a job that is not to be claimed again stays as it is."""
    return _CLAIMING, (job.job_id, model, json.dumps(job.as_row()), "claiming", at, at)


def adopted(job: Job, model: str, at: float) -> Statement:
    """A job that the chain says is ours and the journal does not know, or holds for not claimed."""
    values = (job.job_id, model, json.dumps(job.as_row()), "claimed", float(job.claimed_at), at)
    return (
        "insert or replace into jobs (job_id, model, row, state, claim_sent, updated) values (?, ?, ?, ?, ?, ?)",
        values,
    )


def claimed(job_id: bytes, at: float) -> Statement:
    """Of one that was run ahead, the entry says more than that by now, and stays."""
    return "update jobs set state = 'claimed', updated = ? where job_id = ? and state = 'claiming'", (at, job_id)


def sealed(job_id: bytes, completion_tok: int, inline: bytes | None, length: int, at: float) -> Statement:
    return (
        "update jobs set state = 'sealed', completion_tok = ?, result = ?, result_length = ?, updated = ?"
        " where job_id = ?",
        (completion_tok, inline, length, at, job_id),
    )


def uploaded(job_id: bytes, cid: str, at: float) -> Statement:
    return "update jobs set result_cid = ?, updated = ? where job_id = ?", (cid, at, job_id)


def failing(job_id: bytes, reason: str, at: float) -> Statement:
    return "update jobs set state = 'failing', reason = ?, updated = ? where job_id = ?", (reason, at, job_id)


def ended(job_id: bytes, state: JournalState, reason: str | None, at: float) -> Statement:
    """The result is of no more use."""
    return (
        "update jobs set state = ?, reason = ?, result = null, updated = ? where job_id = ?",
        (state, reason, at, job_id),
    )


def forgotten(before: float) -> Statement:
    return _FORGET, (before,)


def latest(name: str, value: int) -> Statement:
    return "insert into latest values (?, ?) on conflict (name) do update set value = excluded.value", (name, value)


def insert_home(home: Home) -> Statement:
    return "insert into home values (?, ?, ?)", (home.chain_id, home.job_registry, home.wallet)


def read_live(connection: sqlite3.Connection) -> list[JobEntry]:
    rows = connection.execute(_READ_LIVE)
    return [JobEntry(Job.read(json.loads(row[0])), *row[1:]) for row in rows]


def read_job(connection: sqlite3.Connection, job_id: bytes) -> Job | None:
    row = connection.execute("select row from jobs where job_id = ?", (job_id,)).fetchone()
    return Job.read(json.loads(row[0])) if row is not None else None


def read_state(connection: sqlite3.Connection, job_id: bytes) -> JournalState | None:
    row = connection.execute("select state from jobs where job_id = ?", (job_id,)).fetchone()
    return row[0] if row is not None else None


def read_unknown(connection: sqlite3.Connection, job_ids: Iterable[bytes]) -> set[bytes]:
    """Those of which nothing is remembered but, perhaps, that they were not claimed."""
    known = "select 1 from jobs where job_id = ? and state != 'not_claimed'"
    return {job_id for job_id in job_ids if connection.execute(known, (job_id,)).fetchone() is None}


def read_failed(connection: sqlite3.Connection) -> set[bytes]:
    """Every job that was taken on and not settled, as far as is remembered."""
    return {job_id for (job_id,) in connection.execute("select job_id from jobs where state in ('failed', 'given_up')")}


def read_result(connection: sqlite3.Connection, job_id: bytes) -> bytes | None:
    row = connection.execute("select result from jobs where job_id = ?", (job_id,)).fetchone()
    return row[0] if row is not None else None


def read_latest(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("select value from latest where name = ?", (name,)).fetchone()
    return int(row[0]) if row is not None else 0


def read_owner(connection: sqlite3.Connection, owner: bytes) -> OwnerRecord:
    row = connection.execute(
        "select settled, unpaid, settled_since from owners where owner = ?", ("0x" + owner.hex(),)
    ).fetchone()
    return OwnerRecord(*row) if row is not None else OwnerRecord()


def read_home(connection: sqlite3.Connection) -> Home | None:
    """None for a journal that was not used yet."""
    row = connection.execute("select chain_id, job_registry, wallet from home").fetchone()
    return Home(*row) if row is not None else None


def read_counts(connection: sqlite3.Connection) -> dict[tuple[str, str | None], int]:
    """Jobs by state and reason."""
    rows = connection.execute("select state, reason, count(*) from jobs group by state, reason order by state, reason")
    return {(state, reason): count for state, reason, count in rows}
