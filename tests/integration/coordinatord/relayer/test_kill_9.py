"""Kill the relayer's process between any two steps of a relay. The next process continues with identical bytes."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import anyio
import attrs
import pytest

from coordinatord.chain.relayer.relaying import RelayMined
from devnet.accounts import DevWallets
from tests.integration.coordinatord.relayer.mining import mining_by_hand, pooled, until_pooled
from tests.integration.coordinatord.relayer.running import Scene, Stage, relay_into
from tests.support.faults.relayer_process import kill_9, relayer_process
from tests.support.faults.rpc_proxy import Fault, Hang, RpcProxy, SwallowAnswer, rpc_proxy


@attrs.frozen
class WaitingPost:
    """A submitted post that waits, while relayers come and go."""

    stage: Stage
    proxy: RpcProxy
    scene: Scene
    key: str
    outcomes: list[object]

    @asynccontextmanager
    async def killed_at(self, fault: Fault, reached: str) -> AsyncIterator[None]:
        """Start a relayer that meets `fault`. Kill it when the query shows that the previous step is done."""
        with ExitStack() as faults:
            faults.enter_context(self.proxy.fault(fault))
            async with relayer_process(self.scene.database_url, self.proxy.url, self.key) as process:
                while not self.proxy.seen(fault.method):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.02)
                await self.stage.until(reached)
                yield
                await kill_9(process)

    async def finish(self) -> None:
        """Start a new relayer, which finishes the killed one's work."""
        async with relayer_process(self.scene.database_url, self.proxy.url, self.key):
            while not self.outcomes:
                await self.scene.anvil.call("evm_mine")
                await anyio.sleep(0.05)
        (outcome,) = self.outcomes
        assert isinstance(outcome, RelayMined)
        assert await self.stage.fetchval("select hash from relay_tx_versions") == outcome.tx_hash
        await self.scene.check(self.stage)


@pytest.fixture
def key(wallets: DevWallets) -> str:
    """Return the private key of the relayer."""
    return wallets.with_role("relayer")[0].private_key


@pytest.fixture
async def waiting_post(scene: Scene, key: str) -> AsyncIterator[WaitingPost]:
    """Queue a post without a relayer, on a node that mines only on request."""
    outcomes: list[object] = []
    async with (
        mining_by_hand(scene.anvil),
        rpc_proxy(scene.anvil.rpc_url) as proxy,
        scene.stage() as stage,
        anyio.create_task_group() as callers,
    ):
        callers.start_soon(relay_into(stage, outcomes), scene.post())
        await stage.until("select count(*) = 1 from relays")
        yield WaitingPost(stage, proxy, scene, key, outcomes)


async def test_killed_before_the_bytes_are_stored(waiting_post: WaitingPost) -> None:
    async with waiting_post.killed_at(Hang("eth_call"), "select state = 'queued' from relays"):
        assert await waiting_post.stage.fetchval("select count(*) from relay_txs") == 0
    await waiting_post.finish()


async def test_kill_before_broadcast_recovers(waiting_post: WaitingPost) -> None:
    async with waiting_post.killed_at(Hang("eth_sendRawTransaction"), "select state = 'signed' from relays"):
        assert await pooled(waiting_post.scene.anvil) == 0
    await waiting_post.finish()


async def test_killed_after_a_node_has_the_bytes(waiting_post: WaitingPost) -> None:
    async with waiting_post.killed_at(SwallowAnswer("eth_sendRawTransaction"), "select state = 'signed' from relays"):
        await until_pooled(waiting_post.scene.anvil)
    await waiting_post.finish()


async def test_kill_before_the_receipt_recovers(waiting_post: WaitingPost) -> None:
    async def mine_when_pooled() -> None:
        await until_pooled(waiting_post.scene.anvil)
        await waiting_post.scene.anvil.call("evm_mine")

    async with anyio.create_task_group() as miner:
        miner.start_soon(mine_when_pooled)
        async with waiting_post.killed_at(Hang("eth_getTransactionReceipt"), "select state = 'signed' from relays"):
            pass
    await waiting_post.finish()
