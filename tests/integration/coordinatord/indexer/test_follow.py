"""The index of the real market: woken by notices, handed over, and equal to a fresh replay after reorgs."""

from typing import Final

import anyio
import asyncpg
import attrs
import pytest

from coordinatord.base import metrics
from coordinatord.base.wake import Wake
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import RELAY_ENDED, notify_outbox
from devnet.contracts import contract_at
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.indexer.scene import Scene, index_rows, indexing, settings_of
from tests.support.invariants.index import index_violations

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


async def test_index_of_a_busy_market_agrees_with_the_registries(scene: Scene) -> None:
    await scene.play(60, 60)
    await scene.follower.catch_up(scene.connection)
    await scene.check()


# Around the batch sizes for reading headers (16) and applying blocks (32), and deep ones. On an in-memory chain all
# depths are tried.
DEPTHS: Final = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 49, 50)


@pytest.mark.long
async def test_reorgs_of_depths_up_to_50_leave_a_fresh_replay(scene: Scene) -> None:
    """The chain grows by a block for each depth, so that a replay stays short."""
    anvil, connection = scene.world.anvil, scene.connection
    await scene.play(12, 12)
    await scene.follower.catch_up(connection)
    for depth in DEPTHS:
        for length in (depth, depth + 1):
            snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
            await scene.play(length, 4)
            await scene.follower.catch_up(connection)
            if length > depth:
                await scene.check_replay()
            await anvil.call("evm_revert", snapshot)
            scene.moves = before
        await scene.play(1, 1)
    await scene.play(60, 4)
    await scene.follower.catch_up(connection)
    await scene.check_registries()


async def test_a_reorg_below_the_journal_rebuilds_the_index(scene: Scene) -> None:
    anvil, connection = scene.world.anvil, scene.connection
    scene.follower = scene.fresh_follower(journal_blocks=8)
    await scene.play(6, 6)
    snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
    await scene.play(20, 10)
    await scene.follower.catch_up(connection)
    await anvil.call("evm_revert", snapshot)
    scene.moves = before
    await scene.play(21, 10)
    await scene.follower.catch_up(connection)
    await scene.check()


async def test_a_chain_that_falls_back_and_forks_is_followed(scene: Scene) -> None:
    """The node first shows an older head of the same chain, then a shorter chain that differs."""
    anvil, connection = scene.world.anvil, scene.connection
    await scene.play(4, 4)
    snapshot, before = await anvil.call("evm_snapshot"), scene.moves.branch()
    await scene.play(9, 9)
    await scene.follower.catch_up(connection)
    at_tip = await index_rows(connection)
    await anvil.call("evm_revert", snapshot)
    await scene.follower.catch_up(connection)
    assert await index_rows(connection) == at_tip
    scene.moves = before
    await scene.play(3, 3)
    await scene.follower.catch_up(connection)
    await scene.check()


async def test_a_result_cid_that_is_no_text_does_not_stop_the_index(scene: Scene) -> None:
    await scene.moves.post()
    await scene.moves.claim()
    job, provider = scene.moves.claimed.pop()
    jobs = contract_at(scene.moves.chain, "JobRegistry", scene.world.market.jobs)
    data = jobs.encode_abi("settle", [scene.moves.terms[job], 1, 0, "AAAA", b""]).replace("41414141", "41ff0041")
    await scene.moves.chain.web3.eth.wait_for_transaction_receipt(
        await scene.moves.chain.web3.eth.send_transaction({"from": provider.address, "to": jobs.address, "data": data})
    )
    await scene.follower.catch_up(scene.connection)
    assert await scene.connection.fetchval("select result_cid from jobs where job_id = $1", job) == "A\ufffd\ufffdA"


async def test_check_of_the_index_leaves_the_index_as_it_is(scene: Scene, database_url: str) -> None:
    await scene.play(blocks=20, moves=10)
    await scene.follower.catch_up(scene.connection)
    await scene.connection.execute("update fees set fee_bps = fee_bps + 1")
    async with open_rpc(scene.world.anvil.rpc_url) as rpc:
        for _ in range(2):
            [found] = await index_violations(database_url, rpc, address_book(scene.world))
            assert found.startswith("I4: fees differs from a fresh replay")


async def test_check_of_the_index_ignores_locks(scene: Scene, database_url: str) -> None:
    """Otherwise the check and a coordinator could wait for each other."""
    await scene.play(blocks=5, moves=2)
    await scene.follower.catch_up(scene.connection)
    coordinator = await asyncpg.connect(database_url)
    async with coordinator.transaction(), open_rpc(scene.world.anvil.rpc_url) as rpc:
        await coordinator.execute("lock table jobs, index_position in exclusive mode")
        with anyio.fail_after(20):
            assert await index_violations(database_url, rpc, address_book(scene.world)) == []
    await coordinator.close()
