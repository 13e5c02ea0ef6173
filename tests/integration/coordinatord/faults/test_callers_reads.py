"""A caller's slow read of the node delays only callers."""

import anyio
import httpx
import pytest

from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.faults.rpc_proxy import Hang, rpc_proxy

pytestmark = pytest.mark.anyio

QUESTIONS = 100


async def test_callers_slow_node_reads_do_not_delay_the_index(world: World, database_url: str) -> None:
    async with rpc_proxy(world.anvil.rpc_url) as node:
        settings = environment(world, database_url, RPC_URL=node.url)
        async with (
            running(settings, pick_free(), pick_free()) as coordinator,
            httpx.AsyncClient(
                base_url=coordinator.base_url, trust_env=False, timeout=60, limits=httpx.Limits(max_connections=200)
            ) as http,
            anyio.create_task_group() as strangers,
        ):
            with node.fault(Hang("eth_gasPrice")):  # only GET /evm/chain uses it
                for _ in range(QUESTIONS):
                    strangers.start_soon(http.get, "/evm/chain")
                with anyio.fail_after(60):
                    while not node.seen("eth_gasPrice"):  # noqa: ASYNC110 - the event is in another process
                        await anyio.sleep(0.01)
                    await world.anvil.call("evm_mine")
                    head = int(await world.anvil.call("eth_blockNumber"), 16)
                    state = {"cursor": "0"}
                    while int(state["cursor"]) < head:
                        answer = await http.get("/readyz")
                        state = answer.json()
                        assert answer.status_code == 200, state
                        await anyio.sleep(0.05)
            strangers.cancel_scope.cancel()
