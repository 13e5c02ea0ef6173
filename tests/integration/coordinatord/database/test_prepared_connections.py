from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database import prepared
from coordinatord.storage.database.connections import PREPARED_CONNECTION_COUNT, Database, open_database
from coordinatord.storage.database.prepared import PreparedConnection, PreparedPool

pytestmark = pytest.mark.anyio

_OWN = "select pg_backend_pid() as pid"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=2) as database:
        yield database


async def _pid(line: PreparedConnection) -> int:
    pid: int = (await line.fetch(_OWN))[0]["pid"]
    return pid


async def test_reads_share_a_connection_and_replace_a_lost_one(database: Database) -> None:
    line = database.prepared_connection()
    first = await _pid(line)
    assert await _pid(line) == first
    async with database.connection() as connection:
        await connection.fetchval("select pg_terminate_backend($1, 5000)", first)
    assert await _pid(line) != first


async def test_statement_that_a_migration_outdated_is_prepared_again(database: Database) -> None:
    line = database.prepared_connection()
    async with database.connection() as connection:
        await connection.execute("create table changing (n integer); insert into changing values (7)")
        assert (await line.fetch("select * from changing"))[0]["n"] == 7
        await connection.execute("alter table changing alter n type text")
    assert (await line.fetch("select * from changing"))[0]["n"] == "7"


async def test_statement_error_is_raised_and_connection_stays_usable(database: Database) -> None:
    line = database.prepared_connection()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await line.fetch("select 1 / $1::int", 0)
    assert (await line.fetch("select 1 / $1::int as n", 1))[0]["n"] == 1


async def test_database_that_is_away_is_retryable_until_it_is_back(database: Database) -> None:
    away = True

    async def connect() -> "asyncpg.Connection[asyncpg.Record]":
        if away:
            raise Retryable("not_ready", "refused")
        return await database.connect()

    pool = PreparedPool(connect, 1)
    line = pool.reader()
    with pytest.raises(Retryable):
        await line.fetch(_OWN)
    away = False
    await line.fetch(_OWN)
    await pool.aclose()


async def test_read_that_outlasts_the_end_closes_its_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "CLOSE_TIMEOUT_S", 0.05)
    opened, begun = list["asyncpg.Connection[asyncpg.Record]"](), anyio.Event()

    async def connect() -> "asyncpg.Connection[asyncpg.Record]":
        opened.append(await database.connect())
        begun.set()
        return opened[-1]

    pool = PreparedPool(connect, 1)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # the second waits for the connection of the first
            tasks.start_soon(pool.reader().fetch, "select pg_sleep(0.3)")
        await begun.wait()
        await pool.aclose()
        assert not opened[0].is_closed()
    assert all(connection.is_closed() for connection in opened)


async def test_readers_share_a_few_connections(database: Database) -> None:
    readers = [database.prepared_connection() for _ in range(12)]
    pids: set[int] = set()

    async def read(reader: PreparedConnection) -> None:
        (row,) = await reader.fetch("select pg_backend_pid() as pid, pg_sleep(0.05)")
        pids.add(row["pid"])

    async with anyio.create_task_group() as tasks:
        for reader in readers:
            tasks.start_soon(read, reader)
    assert len(pids) == PREPARED_CONNECTION_COUNT


async def test_read_times_out_when_all_connections_are_taken(database: Database) -> None:
    slow, reader = database.prepared_connection(), database.prepared_connection(0.2)
    async with anyio.create_task_group() as tasks:
        for _ in range(PREPARED_CONNECTION_COUNT):
            tasks.start_soon(slow.fetch, "select pg_sleep(1)")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Retryable), anyio.fail_after(0.9):
            await reader.fetch(_OWN)
