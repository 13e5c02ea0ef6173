"""A commit that the standby did not confirm is an error, and nothing acts on it."""

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.database import transactions
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.transactions import CommitUnconfirmed, transaction
from tests.integration.coordinatord.failover.servers import Pair, frozen

pytestmark = pytest.mark.anyio

_VISIBLE = "select count(*) from written"
_INSERT = "insert into written values (1)"
_WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


@pytest.fixture
async def database(synchronous: Pair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(transactions, "COMMIT_TIMEOUT_S", 1.0)
    async with open_database(synchronous.url, max_size=4) as database:
        async with database.connection() as connection:
            await connection.execute("create table written (n integer)")
        yield database


async def _insert(connection: Connection) -> None:
    await connection.execute(_INSERT)


async def test_commit_that_times_out_is_not_cancelled(database: Database, synchronous: Pair) -> None:
    """A cancelled wait would make the row visible, although a failover may still lose it."""
    with frozen(synchronous.standby):
        with pytest.raises(Retryable, match="CommitUnconfirmed"):
            await database.transact(_insert)
        async with database.connection() as connection:
            assert await connection.fetchval(_VISIBLE) == 0
    async with database.connection() as connection:
        with anyio.fail_after(30):
            while await connection.fetchval(_VISIBLE) != 1:  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.02)


@pytest.mark.long
async def test_commit_of_a_cancelled_caller_is_not_cancelled(database: Database, synchronous: Pair) -> None:
    with frozen(synchronous.standby):
        with pytest.raises(Retryable, match="CommitUnconfirmed"), anyio.move_on_after(0.3):
            await database.transact(_insert)
        async with database.connection() as connection:
            assert await connection.fetchval(_VISIBLE) == 0


async def test_cancelled_wait_for_the_standby_is_an_error(database: Database, synchronous: Pair) -> None:
    """PostgreSQL answers COMMIT, with a warning, when an administrator cancels the wait."""

    async def cancel() -> None:
        async with database.connection() as connection:
            while not (pids := await connection.fetch(_WAITING)):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.02)
            await connection.execute("select pg_cancel_backend($1)", pids[0]["pid"])

    with frozen(synchronous.standby):
        connection = await database.connect()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            with pytest.raises(CommitUnconfirmed, match="synchronous replication"):
                async with transaction(connection):
                    await connection.execute(_INSERT)
        assert connection.is_closed()


@pytest.mark.long
async def test_term_begins_when_the_standby_confirms(database: Database, synchronous: Pair) -> None:
    begun = anyio.Event()

    async def work(_: "asyncpg.Connection[asyncpg.Record]") -> None:
        begun.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        with frozen(synchronous.standby):
            tasks.start_soon(hold_role, database, "a role", work)
            with anyio.move_on_after(2 * transactions.COMMIT_TIMEOUT_S):
                await begun.wait()
            assert not begun.is_set()
        with anyio.fail_after(30):
            await begun.wait()
        tasks.cancel_scope.cancel()
