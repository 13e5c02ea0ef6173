from collections.abc import AsyncIterator

import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database, PreparedConnection, open_database

pytestmark = pytest.mark.anyio

_OWN = "select pg_backend_pid() as pid"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, smallest=1, largest=2) as database:
        yield database


async def _pid(line: PreparedConnection) -> int:
    pid: int = (await line.fetch(_OWN))[0]["pid"]
    return pid


async def test_reads_go_over_one_connection_until_it_is_lost_and_then_over_another(database: Database) -> None:
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


async def test_error_of_the_statement_itself_is_raised_and_the_line_goes_on(database: Database) -> None:
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

    line = PreparedConnection(connect)
    with pytest.raises(Retryable):
        await line.fetch(_OWN)
    away = False
    await line.fetch(_OWN)
    line.drop()
