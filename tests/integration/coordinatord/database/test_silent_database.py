"""A database that becomes silent: connections stay open, and no response comes."""

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, Database, open_database
from tests.support.faults.tcp_proxy import TcpProxy, tcp_proxy

TIMEOUT_S = 0.3
GIVEN_UP = 5.0  # limit until a caller gets an error


@asynccontextmanager
async def behind_proxy(database_url: str) -> AsyncIterator[tuple[TcpProxy, Database]]:
    parts = urlsplit(database_url)
    assert parts.hostname is not None
    assert parts.port is not None
    async with tcp_proxy(parts.hostname, parts.port) as proxy:
        place = parts.netloc.rpartition("@")[0] + f"@{proxy.host}:{proxy.port}"
        url = urlunsplit(parts._replace(netloc=place))
        async with open_database(
            url, max_size=2, acquire_timeout_s=TIMEOUT_S, statement_timeout_s=TIMEOUT_S
        ) as database:
            yield proxy, database


async def write(connection: Connection) -> int:
    found: int = await connection.fetchval("select 1")
    return found


async def test_silent_database_times_out_and_the_pool_recovers(database_url: str) -> None:
    async with behind_proxy(database_url) as (proxy, database):
        assert await database.transact(write) == 1
        with proxy.black_hole(), anyio.fail_after(GIVEN_UP):
            for _ in range(3):  # both connections of the pool, and a third, not yet open
                with pytest.raises(Retryable) as told:
                    await database.transact(write)
                assert told.value.kind == "not_ready"
            with pytest.raises(Retryable):
                async with database.connection() as connection:
                    await write(connection)
        assert await database.transact(write) == 1


async def test_pool_of_a_silent_database_closes_in_time(database_url: str) -> None:
    async with behind_proxy(database_url) as (proxy, database):
        began = time.monotonic()
        async with database.pool.acquire():
            proxy.black_hole().__enter__()
    assert time.monotonic() - began < 2 * GIVEN_UP


async def test_slow_statement_is_cancelled_in_the_database(database_url: str) -> None:
    async with open_database(database_url, max_size=1, statement_timeout_s=TIMEOUT_S) as database:
        with pytest.raises(Retryable):
            await database.transact(lambda c: c.execute("select pg_sleep(60) as of_a_silent_database"))
        async with database.connection() as connection:
            left = "select count(*) from pg_stat_activity where query like '%of_a_silent%' and pid <> pg_backend_pid()"
            assert await connection.fetchval(left) == 0
            assert await connection.fetchval("show statement_timeout") == "5300ms"


async def test_statement_cancelled_by_the_server_is_retryable(database_url: str) -> None:
    async with open_database(database_url, max_size=1) as database:
        with pytest.raises(Retryable) as told:
            await database.transact(_ended_by_the_server)
        assert told.value.kind == "not_ready"


async def _ended_by_the_server(connection: Connection) -> None:
    await connection.execute("set local statement_timeout = 50")
    await connection.execute("select pg_sleep(60)")


async def test_migrations_and_roles_outlast_request_timeouts(database_url: str) -> None:
    async with open_database(database_url, max_size=1, statement_timeout_s=0.05) as database:
        async with database.connection_without_timeout() as connection:
            await connection.execute("select pg_sleep(0.7)")
        of_a_role = await database.connect()
        try:
            await of_a_role.execute("select pg_sleep(0.2)")
            with pytest.raises(TimeoutError):
                await of_a_role.execute("select pg_sleep(60)")
        finally:
            await of_a_role.close(timeout=1)


async def test_every_connection_detects_a_silent_peer(database_url: str) -> None:
    async with open_database(database_url, max_size=1) as database:
        of_a_role = await database.connect()
        try:
            async with database.connection() as pooled:
                assert [_patience(connection) for connection in (pooled, of_a_role)] == [(1, 20_000, 10, 5, 3)] * 2
        finally:
            await of_a_role.close(timeout=1)


def _patience(connection: "Connection | asyncpg.Connection[asyncpg.Record]") -> tuple[int, ...]:
    opened = connection._transport.get_extra_info("socket")
    assert opened.family == socket.AF_INET
    options = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    of_tcp = [opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
    return (opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *of_tcp)
