import anyio
import asyncpg
import pytest

from coordinatord.chain.rpc.client import open_rpc
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.indexer.scene import Scene
from tests.support.invariants.index import index_violations

pytestmark = pytest.mark.anyio


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
