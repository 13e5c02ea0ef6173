"""Connections: opening, sharing and listening."""

import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.base.startup import StartupRetry
from coordinatord.storage.database import notices, prepared
from coordinatord.storage.database.connections import PREPARED_CONNECTION_COUNT, Database, open_database
from coordinatord.storage.database.notices import (
    BATCH_MOVED,
    INDEX_MOVED,
    RELAY_ENDED,
    RELAY_QUEUED,
    RESET,
    Notices,
    notify_outbox,
)
from coordinatord.storage.database.prepared import PreparedConnection, PreparedPool
from devnet.postgres import Postgres


async def _refusal(dsn: str, kind: type[Exception]) -> str:
    with pytest.raises(kind, match="DATABASE_URL") as stopped:
        async with open_database(dsn, max_size=1):
            raise AssertionError("it opened")
    return str(stopped.value)


@pytest.mark.parametrize(
    "dsn",
    ["localhost/svc", "mysql://user:hunter2@localhost/svc", "postgresql://user:hun/ter2@localhost/svc"],
    ids=["no address", "another database's", "a slash in the password"],
)
async def test_malformed_url_is_reported_without_its_password(dsn: str) -> None:
    assert "hun" not in await _refusal(dsn, Fatal)


async def test_missing_database_and_wrong_password_are_reported(database_url: str) -> None:
    assert "no_such" in await _refusal(re.sub("[^/]+$", "no_such", database_url), Retryable)
    password = urlsplit(database_url).password
    assert password is not None
    refusal = await _refusal(database_url.replace(password, "another"), Retryable)
    assert "password authentication failed" in refusal
    assert "another" not in refusal


async def test_start_waits_while_the_login_is_refused(database_url: str, postgres: Postgres) -> None:
    """A coordinator that restarts during a password change must keep trying."""
    name, parts = f"shut_out_{urlsplit(database_url).path[1:]}", urlsplit(database_url)
    await postgres.execute(f"create role {name} password 'word'")  # without `login`
    dsn = parts._replace(netloc=f"{name}:word@{parts.hostname}:{parts.port}").geturl()

    async def opened() -> str:
        async with open_database(dsn, max_size=1) as database, database.connection() as connection:
            return str(await connection.fetchval("select current_user"))

    rejected = anyio.Event()

    async def attempt() -> str:
        try:
            return await opened()
        except Retryable:
            rejected.set()
            raise

    async def restore() -> None:
        await rejected.wait()
        await postgres.execute(f"alter role {name} login")

    with pytest.raises(Retryable, match="not permitted to log in"):
        await opened()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(restore)
        assert await StartupRetry(30, first_pause_s=0.05).retry_until_ready("the database", attempt) == name
    await postgres.execute(f"drop role {name}")


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


# Idle listeners between two heartbeats. A process stopped inside a statement may hold a lock that all need.
_RESTING_LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and query = 'select 1' and state = 'idle' and clock_timestamp() - state_change < interval '0.3 s'"
)


@contextmanager
def silenced(pid: int) -> Iterator[None]:
    """Stop the server's side of a connection from answering, without an error."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _listener(database: Database) -> int:
    async with database.connection() as connection:
        while not (pids := await connection.fetch(_RESTING_LISTENERS)):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.02)
        return int(pids[0]["pid"])


async def test_listening_connection_that_fell_silent_is_replaced(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "HEARTBEAT_TIMEOUT_S", 1)
    heard = anyio.Event()
    listening = Notices(heartbeat_s=1)
    async with (
        open_database(database_url, max_size=2) as database,
        anyio.create_task_group() as tasks,
        listening.subscribe(INDEX_MOVED, lambda payload: heard.set() if payload != RESET else None),
    ):
        tasks.start_soon(listening.listen, database)
        with anyio.fail_after(60), silenced(await _listener(database)):
            while not heard.is_set():
                async with database.connection() as connection:
                    await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)
                with anyio.move_on_after(0.2):
                    await heard.wait()
        tasks.cancel_scope.cancel()


async def test_topics_get_entries_in_order_and_a_reset_on_connect(database_url: str) -> None:
    listening = Notices()
    told, arrived = anyio.create_memory_object_stream[tuple[str, str]](100)
    async with (
        told,
        arrived,
        open_database(database_url, max_size=2) as database,
        anyio.create_task_group() as tasks,
    ):
        for topic in (INDEX_MOVED, RELAY_QUEUED, RELAY_ENDED, BATCH_MOVED):
            listening.subscribe_always(topic, lambda payload, topic=topic: told.send_nowait((topic, payload)))

        async def next_entries(count: int) -> list[tuple[str, str]]:
            with anyio.fail_after(30):
                return [await arrived.receive() for _ in range(count)]

        tasks.start_soon(listening.listen, database)
        resets = [(topic, RESET) for topic in (INDEX_MOVED, RELAY_QUEUED, RELAY_ENDED, BATCH_MOVED)]
        assert await next_entries(4) == resets
        async with database.connection() as connection:
            await notify_outbox(connection, RELAY_QUEUED)
            await notify_outbox(connection, "of another release", "1")
            await notify_outbox(connection, RELAY_ENDED, "7")
            await connection.execute("select pg_notify($1, '41')", INDEX_MOVED)
            assert await next_entries(3) == [(RELAY_QUEUED, ""), (RELAY_ENDED, "7"), (INDEX_MOVED, "41")]
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )
        assert await next_entries(4) == resets
        tasks.cancel_scope.cancel()
