"""Callers that are cancelled at each place where they wait for the database."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TypeAlias

import anyio
import asyncpg
import pytest

from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.primary import PrimaryConnector
from coordinatord.storage.database.transactions import transaction
from tests.support.faults.crash_points import CrashPoints

pytestmark = pytest.mark.anyio

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_OTHERS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    connection.terminate()


async def test_cancelled_transaction_is_rolled_back(connection: Connection) -> None:
    async def read() -> None:
        async with transaction(connection):
            await connection.execute("select 1")

    points, cancelled = CrashPoints("coordinatord"), 0
    while await points.live(anyio.CancelScope(), read) is not None:
        cancelled += 1
        assert await connection.fetchval("select 1") == 1  # ends asyncpg's cancellation
        assert not connection.is_in_transaction()
    assert cancelled >= 2  # during BEGIN and COMMIT


async def test_cancelled_opening_leaves_no_connection(database_url: str, connection: Connection) -> None:
    async def connect() -> None:
        (await PrimaryConnector(database_url, timeout_s=5).connect(5)).terminate()

    points, cancelled = CrashPoints("coordinatord"), 0
    while await points.live(anyio.CancelScope(), connect) is not None:
        cancelled += 1
        gc.collect()  # fails the test for an open connection and for a coroutine that never ran
    assert cancelled >= 2  # while it connects, and in its first statement
    with anyio.fail_after(10):
        while await connection.fetchval(_OTHERS):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.02)


async def test_second_cancellation_leaves_no_connection(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Connection] = []
    connect = asyncpg.connect

    async def recorded(*args: object, **options: object) -> Connection:
        opened.append(await connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(asyncpg, "connect", recorded)
    opening = asyncio.create_task(PrimaryConnector(database_url, timeout_s=5).connect(5))
    while not opened:  # noqa: ASYNC110 - no event says that the first statement runs
        await asyncio.sleep(0)
    for _ in range(2):
        opening.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await opening
    assert opened[0].is_closed()


async def test_lost_pooled_connection_starts_no_task(database_url: str) -> None:
    tasks = asyncio.all_tasks()
    async with open_database(database_url, max_size=2) as database:
        async with database.connection() as pooled:
            await pooled.fetchval("select 1")
            pooled.terminate()
        assert asyncio.all_tasks() == tasks
