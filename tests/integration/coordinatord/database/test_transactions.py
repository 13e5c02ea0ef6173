"""Transactions that PostgreSQL rolls back because of conflicts, that are cancelled, kept open or run twice."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.locks import keep_transaction_open
from coordinatord.storage.database.primary import PrimaryConnector
from coordinatord.storage.database.transactions import transaction
from tests.integration.coordinatord.scene.batching import CREATE, Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.faults.crash_points import CrashPoints


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


async def test_transaction_outlives_the_servers_idle_timeout(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("set idle_in_transaction_session_timeout = '250ms'")
    async with connection.transaction():
        async with keep_transaction_open(connection, interval_s=0.05):
            await anyio.sleep(0.4)
        assert await connection.fetchval("select 1") == 1
    await connection.close()


async def test_trouble_inside_is_raised_as_it_is(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        with pytest.raises(Retryable):
            async with keep_transaction_open(connection):
                raise Retryable("pinner_unavailable", "gone")
    await connection.close()


T = TypeVar("T")


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"WEBHOOKS_KEY": "5e" * 32}


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Run every later transaction twice."""
    once = Database.transact

    async def twice(self: Database, body: Callable[[Connection], Awaitable[T]]) -> T:
        await once(self, body)
        return await once(self, body)

    return lambda: monkeypatch.setattr(Database, "transact", twice)


async def test_session_opens(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    unheard()
    await client.sign_in()
    assert await stage.fetchval("select count(*) from sessions") == 1
    assert await stage.fetchval("select count(*) from nonces") == 0


async def test_webhook_is_added_and_removed_once(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    await client.sign_in()
    unheard()
    body = {"url": "https://shop.example/hook"}
    added = await stage.http.post("/v1/webhooks", json=body, headers=client.authorization)
    assert added.status_code == 200, added.text
    assert await stage.fetchval("select array_agg(id) from webhooks") == [added.json()["id"]]
    one = f"/v1/webhooks/{added.json()['id']}"
    answers = [await stage.http.delete(one, headers=client.authorization) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 404]


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "once"}])
async def test_batch_is_created_once(
    stage: Stage, batching: Batching, headers: dict[str, str], unheard: Callable[[], None]
) -> None:
    body = {**CREATE, "input_file_id": await batching.upload(*batching.submitter.lines(1))}
    unheard()
    created = await batching.post(body, **headers)
    assert created.status_code == 200, created.text
    assert await stage.fetchval("select array_agg(id) from batches") == [created.json()["id"]]


async def test_upload_and_job_are_stored_once(stage: Stage, client: Party, unheard: Callable[[], None]) -> None:
    await client.sign_in()
    unheard()
    uploaded = await client.upload("input", client.container())
    assert uploaded.status_code == 200, uploaded.text
    await client.post()
    assert await stage.fetchval("select count(*) from files") == 1
    assert await stage.fetchval("select count(*) from relays") == 1
