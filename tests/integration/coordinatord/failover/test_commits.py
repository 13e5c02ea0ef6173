"""A commit that the standby did not confirm is an error. The first term after a promotion moves the ids forward."""

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from common.api.events import EventKind
from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY
from coordinatord.storage.database import transactions
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.terms_sql import begin_term
from coordinatord.storage.database.transactions import CommitUnconfirmed, transaction
from tests.integration.coordinatord.failover.servers import Pair, cut_replication, frozen, until_replayed

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


_STEP = 1_000_000
_POSITION = "insert into index_position (block_number, block_hash, block_time) values (7, '', 70)"
_NEXT_EVENT = "insert into events (kind, block_number, block_time) values (7, 7, 70) returning id"


async def _hold_once(database: Database) -> None:
    """Hold a role for one term."""
    held = anyio.Event()

    async def work(_: "asyncpg.Connection[asyncpg.Record]") -> None:
        held.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold_role, database, "a role", work)
        with anyio.fail_after(30):
            await held.wait()
        tasks.cancel_scope.cancel()


async def _resets(connection: Connection) -> list[tuple[int, int]]:
    rows = await connection.fetch("select id, block_number from events where kind = $1 order by id", EventKind.RESET)
    return [(row["id"], row["block_number"]) for row in rows]


def _promotions() -> float:
    return REGISTRY.get_sample_value("coordinatord_database_promotions_total") or 0.0


async def test_ids_of_lost_rows_are_not_used_again(asynchronous: Pair) -> None:
    counted = _promotions()
    async with open_database(asynchronous.url, max_size=2) as database:
        await _hold_once(database)
        async with database.connection() as connection:
            await connection.execute(_POSITION)
            resets = await _resets(connection)
        assert _promotions() == counted
        await until_replayed(asynchronous)
        await cut_replication(asynchronous.standby)
        lost = 0
        async with database.connection() as connection:
            for _ in range(100):  # more than the ids that PostgreSQL logs in advance
                lost = await connection.fetchval(_NEXT_EVENT)
        await asynchronous.fail_over()
        for _ in range(2):  # the second term finds the epoch known
            await _hold_once(database)
        async with database.connection() as connection:
            (reset,) = (await _resets(connection))[len(resets) :]
            assert reset[0] > lost
            assert reset[1] == 7
            assert await connection.fetchval("select last_value from relays_id_seq") >= _STEP
        assert _promotions() == counted + 1


async def test_restored_database_starts_a_new_epoch(database_url: str) -> None:
    """A dump restored in another cluster keeps the row with the old cluster's id."""
    connection = await asyncpg.connect(database_url)
    try:
        await begin_term(connection)
        await connection.execute(_POSITION)
        before = await _resets(connection)
        await connection.execute("update server_epoch set system_identifier = 1")
        await begin_term(connection)
        assert len(await _resets(connection)) == len(before) + 1
    finally:
        await connection.close()
