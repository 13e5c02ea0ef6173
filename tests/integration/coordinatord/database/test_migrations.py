"""Migrations on a real server: in order, outside a transaction, and on databases of other versions."""

import secrets
from collections.abc import AsyncIterator, Callable

import anyio
import asyncpg
import pytest

from common.daemon.process import Fatal
from coordinatord.storage.database import migration
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.migration import Migration, migrate
from devnet.postgres import Postgres

Install = Callable[..., None]

TABLE = (900, "-- least release: 0.1.0\ncreate table t (a integer); insert into t values (1), (1)")
DISTINCT_TABLE = (900, "-- least release: 0.1.0\ncreate table t (a integer); insert into t values (1)")
UNIQUE_INDEX = (
    901,
    "-- least release: 0.1.0\n"
    "-- outside a transaction\n"
    "drop index concurrently if exists t_a;\n"
    "create unique index concurrently t_a\n    on t (a);\n",
)
VALID = "select indisvalid from pg_index where indexrelid = to_regclass('t_a')"


@pytest.fixture
def database_template() -> str:
    """Tests begin with an empty database."""
    return "template1"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace this release's migrations."""

    def installed(*files: tuple[int, str]) -> None:
        made = {number: Migration(number, f"{number:04d}_made.sql", sql) for number, sql in files}
        monkeypatch.setattr(migration, "load_migrations", lambda: made)

    return installed


async def test_database_owner_without_further_rights_migrates(postgres: Postgres) -> None:
    """Use the role and database of docs/operators/install.md."""
    name = f"owner_{secrets.token_hex(4)}"
    await postgres.execute(f"create role {name} login password 'word'")
    await postgres.execute(f"create database {name} owner {name}")
    try:
        connection = await asyncpg.connect(f"postgresql://{name}:word@127.0.0.1:{postgres.port}/{name}")
        assert len(await migrate(connection)) == len(migration.load_migrations())
        assert await migrate(connection) == []
        await connection.close()
    finally:
        await postgres.execute(f"drop database {name} with (force)")
        await postgres.execute(f"drop role {name}")


async def test_too_old_server_is_refused_and_left_unchanged(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    major = connection.get_server_version().major
    monkeypatch.setattr(migration, "MIN_SERVER_VERSION", major + 1)
    with pytest.raises(Fatal, match=f"must be PostgreSQL {major + 1} or newer, and is {major}: upgrade it"):
        await migrate(connection)
    assert await connection.fetchval("select to_regclass('migrations')") is None


async def test_failed_migration_leaves_the_ones_before_it(connection: Connection, install: Install) -> None:
    install(TABLE, (901, "-- least release: 0.1.0\ninsert into t values (2); insert into missing values (1)"))
    with pytest.raises(asyncpg.UndefinedTableError):
        await migrate(connection)
    assert await connection.fetchval("select count(*) from t") == 2
    install(TABLE, (901, "-- least release: 0.1.0\ninsert into t values (3)"))
    assert await migrate(connection) == ["0901_made.sql"]
    assert await connection.fetchval("select count(*) from t") == 3


async def test_failed_nontransactional_migration_is_repeated(connection: Connection, install: Install) -> None:
    """A failed `create index concurrently` leaves an invalid index. The retry drops it and builds a valid one."""
    install(TABLE, UNIQUE_INDEX)
    with pytest.raises(asyncpg.UniqueViolationError):
        await migrate(connection)
    assert await connection.fetchval(VALID) is False
    # Remove one of the two equal rows, so that the unique index can be built.
    await connection.execute("delete from t where ctid in (select ctid from t limit 1)")
    assert await migrate(connection) == ["0901_made.sql"]
    assert await connection.fetchval(VALID) is True
    assert await migrate(connection) == []


async def test_killed_nontransactional_migration_is_repeated(database_url: str, install: Install) -> None:
    """The connection is lost while the index is built. The file is not recorded, and the next start repeats it."""
    killed, writer, observer = [await asyncpg.connect(database_url) for _ in range(3)]
    install(DISTINCT_TABLE)
    await migrate(killed)
    install(DISTINCT_TABLE, UNIQUE_INDEX)

    async def migrate_until_killed() -> None:
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await migrate(killed)

    async with writer.transaction(), anyio.create_task_group() as tasks:
        await writer.execute("insert into t values (7)")  # the build waits for this transaction
        tasks.start_soon(migrate_until_killed)
        with anyio.fail_after(20):
            while await observer.fetchval(VALID) is None:  # noqa: ASYNC110 - the server has no event for it
                await anyio.sleep(0.02)
        await observer.execute("select pg_terminate_backend($1)", killed.get_server_pid())
    assert await observer.fetchval(VALID) is False
    assert await migrate(observer) == ["0901_made.sql"]
    assert await observer.fetchval(VALID) is True
    await writer.close()
    await observer.close()


async def test_processes_that_start_together_apply_each_migration_once(database_url: str, install: Install) -> None:
    """A waiting process must not block the `create index concurrently` of the process that it waits for."""
    install(DISTINCT_TABLE, UNIQUE_INDEX)
    applied: list[str] = []

    async def start() -> None:
        connection = await asyncpg.connect(database_url)
        applied.extend(await migrate(connection))
        await connection.close()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(start)
    assert applied == ["0900_made.sql", "0901_made.sql"]


async def test_database_of_another_version_is_refused(connection: Connection) -> None:
    """Databases of unreleased trees have different files under the same number, and lack later columns."""
    await connection.execute("create table migrations (number integer primary key, name text, sha256 bytea)")
    await connection.execute("insert into migrations values (1, '0001_index.sql', '\\x00'), (2, '0002_relays.sql', '')")
    with pytest.raises(
        Fatal,
        match=r"0001_index\.sql of the database differs from .*: start .* or point DATABASE_URL to an empty database",
    ):
        await migrate(connection)
    assert await connection.fetchval("select to_regclass('jobs')") is None


FUTURE = (
    "-- least release: {least}\n"
    "create table of_the_future (id bigint primary key, told text);"
    " alter table jobs add column told text; alter table relays add column weight integer not null default 7;"
    " create index relays_by_weight on relays (weight);"
)


def with_future(least: str) -> dict[int, Migration]:
    """Return migrations of a future release."""
    return migration.load_migrations() | {900: Migration(900, "0900_future.sql", FUTURE.format(least=least))}


async def test_newer_database_decides_which_releases_may_run(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(await migrate(connection)) == len(migration.load_migrations())
    future = with_future("0.3.0")
    with monkeypatch.context() as newer:
        newer.setattr(migration, "load_migrations", lambda: future)
        assert await migrate(connection, "0.4.0") == ["0900_future.sql"]
    for may_run in ("0.3.0", "0.3.1", "1.0.0", "0.10.0", "0.3.0rc1"):
        assert await migrate(connection, may_run) == []
    with pytest.raises(
        Fatal, match=r"migration 0900, which requires release 0\.3\.0 or later, and this is release 0\.2\.9"
    ):
        await migrate(connection, "0.2.9")


async def test_migration_without_a_least_release_is_refused(connection: Connection, install: Install) -> None:
    install((900, "create table t (a int)"))
    with pytest.raises(Fatal, match=r"0900_made\.sql must begin with `-- least release: X\.Y\.Z`"):
        await migrate(connection)
    assert await connection.fetchval("select to_regclass('t')") is None
