"""Migrations of a database that holds something."""

import json
import secrets

import asyncpg
import pytest

from common.daemon.process import Fatal
from coordinatord.chain.indexer.undo_sql import undo_above
from coordinatord.storage.database import migrate as migrating
from coordinatord.storage.database.migrate import migrate
from devnet.postgres import Postgres

pytestmark = pytest.mark.anyio

_OLD_JOB = (
    "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out, designated,"
    " expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, state, ended_because)"
    " values ($1, '\\xaa', '\\x01', 1, 60, 1, 1, 1, 1, 0, $2, 7, 0, 0, 'bafk', '\\x01', $3, $4, $5, $6)"
)


@pytest.fixture
def database_template() -> str:
    """Tests begin with an empty database."""
    return "template1"


async def test_role_that_owns_its_database_and_nothing_more_migrates_it(postgres: Postgres) -> None:
    """As config/postgresql/README.md makes it."""
    name = f"owner_{secrets.token_hex(4)}"
    await postgres.execute(f"create role {name} login password 'word'")
    await postgres.execute(f"create database {name} owner {name}")
    try:
        connection = await asyncpg.connect(f"postgresql://{name}:word@127.0.0.1:{postgres.port}/{name}")
        assert len(await migrate(connection)) == len(migrating._migrations())
        assert await migrate(connection) == []
        await connection.close()
    finally:
        await postgres.execute(f"drop database {name} with (force)")
        await postgres.execute(f"drop role {name}")


async def test_server_that_is_older_than_this_release_takes_ends_the_start_and_stays_as_it_is(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    major = connection.get_server_version().major
    monkeypatch.setattr(migrating, "LEAST_SERVER", major + 1)
    with pytest.raises(Fatal, match=f"must be PostgreSQL {major + 1} or newer, and is {major}: upgrade it"):
        await migrate(connection)
    assert await connection.fetchval("select to_regclass('migrations')") is None
    await connection.close()


async def test_database_that_applied_a_file_before_it_was_mended_goes_on(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await migrate(connection)
    for number, digest in migrating._MENDED.items():
        await connection.execute("update migrations set sha256 = $2 where number = $1", number, digest)
    assert await migrate(connection) == []
    await connection.execute("update migrations set sha256 = '\\x00' where number = 15")
    with pytest.raises(Fatal, match=r"0015_expired_and_counted\.sql was changed"):
        await migrate(connection)
    await connection.close()


async def test_marks_of_expired_jobs_are_no_event_of_the_block_that_is_applied(database_url: str) -> None:
    """They are not journaled, and what follows them in the transaction is."""
    connection = await asyncpg.connect(database_url)
    await migrate(connection)
    async with connection.transaction():
        await connection.execute("select set_config('svc.journal_block', '7', true)")
        await connection.execute("select mark_expired_jobs(1000), unmark_expired_jobs(900)")
        assert await connection.fetchval("select current_setting('svc.journal_block')") == "7"
    await connection.close()


async def test_jobs_of_before_are_numbered_marked_and_counted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    files = migrating._migrations()
    with monkeypatch.context() as before:
        before.setattr(migrating, "_migrations", lambda: {n: file for n, file in files.items() if n < 15})
        await migrate(connection)
    await connection.execute("insert into index_position values (true, 9, '\\x09', 1000, false)")
    for job, expires_at, block, log, state, because in (
        (b"c", 2000, 5, 0, 0, 0),
        (b"a", 999, 3, 1, 0, 0),  # expired
        (b"b", 1000, 4, 0, 2, 1),
        (b"d", 999, 3, 0, 3, 2),
    ):
        await connection.execute(_OLD_JOB, job, expires_at, block, log, state, because)
    old_row = await connection.fetchval("select to_jsonb(j) || '{\"state\": 1}' from jobs j where job_id = 'b'")
    await connection.execute(
        "insert into undo_journal (block_number, table_name, key, old_row) values (9, 'jobs', $1, $2)",
        json.dumps({"job_id": "\\x62"}),
        old_row,
    )
    await migrate(connection)
    book = "select convert_from(job_id, 'utf8'), ordinal, state, ended_because from jobs order by ordinal"
    assert [tuple(row) for row in await connection.fetch(book)] == [
        ("d", 0, 3, 2),
        ("a", 1, 3, 5),
        ("b", 2, 2, 1),
        ("c", 3, 0, 0),
    ]
    counts = "select state, jobs from job_counts where list = 0 and bits = 12 order by state"
    assert [tuple(row) for row in await connection.fetch(counts)] == [(0, 1), (2, 1), (3, 2)]
    sums = await connection.fetchrow("select jobs, completed, escrowed from owner_sums")
    assert sums is not None
    assert tuple(sums) == (4, 1, 28)
    async with connection.transaction():  # what was journaled before can be undone after
        await undo_above(connection, 8)
    assert tuple((await connection.fetch(book))[2]) == ("b", 2, 1, 1)
    await connection.close()


FUTURE = (
    "-- least release: {least}\n"
    "create table of_the_future (id bigint primary key, told text);"
    " alter table jobs add column told text; alter table relays add column weight integer not null default 7;"
    " create index relays_by_weight on relays (weight);"
)


async def test_a_newer_database_tells_an_older_release_whether_it_may_run(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    files = migrating._migrations()
    applied = await migrate(connection)
    assert len(applied) == len(files)
    with monkeypatch.context() as newer:
        future = {900: ("0900_future.sql", FUTURE.format(least="0.3.0"))}
        newer.setattr(migrating, "_migrations", lambda: files | future)
        assert await migrate(connection, "0.4.0") == ["0900_future.sql"]
    for may_run in ("0.3.0", "0.3.1", "1.0.0", "0.10.0", "0.3.0rc1"):
        assert await migrate(connection, may_run) == []
    with pytest.raises(Fatal, match=r"migration 0900, which lets release 0\.3\.0 or later run, and this is 0\.2\.9"):
        await migrate(connection, "0.2.9")
    await connection.execute("update migrations set least_release = null where number = 900")
    with pytest.raises(Fatal, match="migration 0900, which this version does not know; upgrade first"):
        await migrate(connection, "9.9.9")
    await connection.close()


async def test_a_database_from_before_least_releases_were_kept_is_taken_over(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    await migrate(connection)
    await connection.execute("alter table migrations drop column least_release")
    assert await migrate(connection) == []
    await connection.close()


async def test_a_later_migration_without_a_least_release_is_not_applied(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    monkeypatch.setattr(migrating, "_migrations", lambda: {900: ("0900_future.sql", "create table t (a int)")})
    with pytest.raises(Fatal, match=r"0900_future\.sql must begin with `-- least release: X\.Y\.Z`"):
        await migrate(connection)
    assert await connection.fetchval("select to_regclass('t')") is None
    await connection.close()
