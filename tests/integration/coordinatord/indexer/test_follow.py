"""The running indexer: woken by notices, alone in its role, replaced when its holder stops."""

import attrs
import pytest

from coordinatord.base import metrics
from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import RELAY_ENDED, notify_outbox
from tests.integration.coordinatord.indexer.running import indexing
from tests.integration.coordinatord.indexer.scene import Scene, settings_of

pytestmark = pytest.mark.anyio

NEVER = 3_600_000  # milliseconds: only a notice can wake it


async def test_a_hint_wakes_the_indexer_before_its_poll(scene: Scene, database: Database) -> None:
    async with indexing(database, scene.source, scene.world, block_time_ms=NEVER) as running:
        await running.until_at(await scene.head())
        await scene.moves.post()
        running.wake()
        await running.until_at(await scene.head())


async def test_a_relay_that_ended_anywhere_wakes_the_indexer(scene: Scene, database: Database) -> None:
    async with indexing(database, scene.source, scene.world, block_time_ms=NEVER) as running:
        await running.until_at(await scene.head())
        await scene.moves.post()
        async with database.connection() as connection:
            await notify_outbox(connection, RELAY_ENDED, "1")
        await running.until_at(await scene.head())


async def test_another_process_takes_over_a_cut_connection(scene: Scene, database: Database) -> None:
    async with (
        indexing(database, scene.source, scene.world) as first,
        indexing(database, scene.source, scene.world),
    ):
        await first.until_at(await scene.head())
        async with database.connection() as connection:
            cut = await connection.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_locks where locktype = 'advisory' and granted"
                " and database = (select oid from pg_database where datname = current_database())"
            )
        assert cut == 1
        await scene.play(3, 3)
        await first.until_at(await scene.head())
    await scene.check()


async def test_confirmations_keep_the_index_below_the_head(scene: Scene, connection: Connection) -> None:
    settings = attrs.evolve(settings_of(scene.world), confirmations=5)
    await scene.play(8, 8)
    await IndexFollower(scene.source, settings, Wake()).catch_up(connection)
    position = await read_position(connection)
    assert position is not None
    assert position.block_number == await scene.head() - 5


async def test_lag_is_measured_though_nobody_asks_for_readiness(scene: Scene, connection: Connection) -> None:
    follower = IndexFollower(scene.source, settings_of(scene.world), Wake())
    await follower.catch_up(connection)
    metrics.index_lag.set(99)
    await follower.catch_up(connection)
    assert metrics.REGISTRY.get_sample_value("coordinatord_index_lag_blocks") == 0
