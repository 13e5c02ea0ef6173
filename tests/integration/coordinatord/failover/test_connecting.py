"""Connections find the primary among the hosts of DATABASE_URL, and leave a replaced one."""

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, open_database
from coordinatord.storage.database.errors import DATABASE_ERRORS
from devnet.ports import LOOPBACK, pick_free
from tests.integration.coordinatord.failover.servers import Pair, frozen, promote

pytestmark = pytest.mark.anyio

FOUND_WITHIN_S = 6.0  # one statement timeout, one host timeout, and slack


async def _port(connection: Connection) -> int:
    port: int = await connection.fetchval("select current_setting('port')::integer")
    return port


async def _write(connection: Connection) -> int:
    await connection.execute("create table if not exists written (n integer); insert into written values (1)")
    return await _port(connection)


async def test_host_that_is_down_is_skipped(database_url: str) -> None:
    credentials, place = database_url.rsplit("@", 1)
    several = f"{credentials}@{LOOPBACK}:{pick_free()},{place}"
    async with open_database(several, max_size=1) as database:
        assert await database.transact(_port) == int(place.partition("/")[0].rpartition(":")[2])


async def test_standby_is_skipped(synchronous: Pair) -> None:
    async with open_database(synchronous.url_standby_first, max_size=1) as database:
        assert await database.transact(_write) == synchronous.primary.port


async def test_hanging_primary_does_not_hold_up_its_successor(asynchronous: Pair) -> None:
    """Three connections stay on the old primary: a pooled connection, a role's, and a connection that waits in a
    statement."""
    async with open_database(asynchronous.url, max_size=2, statement_timeout_s=2) as database:
        role = await database.connect()
        assert await _port(role) == asynchronous.primary.port
        async with anyio.create_task_group() as tasks:
            with frozen(asynchronous.primary):
                hung = anyio.Event()

                async def wait() -> None:
                    with pytest.raises(DATABASE_ERRORS):
                        await role.fetchval("select 1")
                    hung.set()

                tasks.start_soon(wait)
                await promote(asynchronous.standby)
                with anyio.fail_after(FOUND_WITHIN_S):
                    while True:
                        try:
                            assert await database.transact(_write) == asynchronous.standby.port
                            break
                        except Retryable:
                            continue
                    await hung.wait()
                assert role.is_closed()


async def test_former_primary_that_comes_back_is_refused(asynchronous: Pair) -> None:
    async with open_database(asynchronous.url, max_size=2) as database:
        await promote(asynchronous.standby)
        successor = await database.connect()
        assert await _port(successor) == asynchronous.primary.port  # no client has noticed the promotion
        with frozen(asynchronous.primary):
            seen = await database.connect()
            assert await _port(seen) == asynchronous.standby.port
        assert successor.is_closed()
        await seen.close()
        await asynchronous.standby.child.stop()
        with pytest.raises(Retryable, match="has timeline 1, and a primary of timeline 2 exists"):
            await database.transact(_write)
