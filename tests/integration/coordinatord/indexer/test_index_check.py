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
