"""Transactions that PostgreSQL rolls back because of conflicts."""

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database, open_database

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=4) as database:
        async with database.connection() as connection:
            await connection.execute("create table counts (id int primary key, n int not null)")
            await connection.execute("insert into counts values (1, 0), (2, 0)")
        yield database


class Meeting:
    """Two first attempts wait here for each other. Later ones pass."""

    def __init__(self) -> None:
        self.attempts = 0
        self._both = anyio.Event()

    async def wait(self) -> None:
        self.attempts += 1
        if self.attempts == 2:
            self._both.set()
        await self._both.wait()


async def _counts(database: Database) -> list[int]:
    async with database.connection() as connection:
        return [row["n"] for row in await connection.fetch("select n from counts order by id")]


async def test_deadlock_is_retried_and_both_sides_commit(database: Database) -> None:
    meeting = Meeting()

    async def add_to(first: int, second: int) -> None:
        async def body(connection: Connection) -> None:
            await connection.execute("set local deadlock_timeout = '20ms'")
            await connection.execute("update counts set n = n + 1 where id = $1", first)
            await meeting.wait()
            await connection.execute("update counts set n = n + 1 where id = $1", second)

        await database.transact(body)

    async with anyio.create_task_group() as both:
        both.start_soon(add_to, 1, 2)
        both.start_soon(add_to, 2, 1)
    assert await _counts(database) == [2, 2]
    assert meeting.attempts == 3


async def test_serialization_failure_is_retried_and_both_commit(database: Database) -> None:
    meeting = Meeting()

    async def copy_sum_to(row: int) -> None:
        async def body(connection: Connection) -> None:
            await connection.execute("set transaction isolation level serializable")
            total = await connection.fetchval("select sum(n) from counts")
            await meeting.wait()
            await connection.execute("update counts set n = $1 + 1 where id = $2", total, row)

        await database.transact(body)

    async with anyio.create_task_group() as both:
        both.start_soon(copy_sum_to, 1)
        both.start_soon(copy_sum_to, 2)
    assert sorted(await _counts(database)) == [1, 2]  # as if run one after the other
    assert meeting.attempts == 3


async def test_repeatedly_rolled_back_transaction_is_retryable(database: Database) -> None:
    attempts = 0

    async def body(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await connection.execute("update counts set n = 9")
        await connection.execute("do $$ begin raise exception using errcode = 'serialization_failure'; end $$")

    with pytest.raises(Retryable, match="SerializationError"):
        await database.transact(body)
    assert attempts == 5
    assert await _counts(database) == [0, 0]


async def test_error_of_the_statement_itself_is_not_tried_again(database: Database) -> None:
    attempts = 0

    async def body(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await connection.execute("insert into counts values (1, 0)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await database.transact(body)
    assert attempts == 1
