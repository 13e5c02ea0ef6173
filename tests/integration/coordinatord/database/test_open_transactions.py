import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.locks import keep_transaction_open

pytestmark = pytest.mark.anyio


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
