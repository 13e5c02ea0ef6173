"""The first role holder after a promotion moves the ids forward and notifies readers of events."""

import anyio
import asyncpg
import pytest

from common.api.events import EventKind
from coordinatord.base.metrics import REGISTRY
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.locks import hold_role
from coordinatord.storage.database.terms_sql import begin_term
from tests.integration.coordinatord.failover.servers import Pair, cut_replication, until_replayed

pytestmark = pytest.mark.anyio

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
