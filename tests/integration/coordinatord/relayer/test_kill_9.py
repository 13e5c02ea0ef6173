"""Kill the relayer's process between any two steps of a relay. The next process continues with identical bytes."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import anyio
import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.accounts import DevWallets
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, pooled, until_pooled
from tests.integration.coordinatord.relayer.ops import Ops
from tests.integration.coordinatord.relayer.running import Stage, stage
from tests.support.faults.relayer_process import kill_9, relayer_process
from tests.support.faults.rpc_proxy import Fault, Hang, RpcProxy, SwallowAnswer, rpc_proxy
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

HOLDS_ROLE = (
    "select count(*) > 0 from pg_locks where locktype = 'advisory' and granted"
    " and database = (select oid from pg_database where datname = current_database())"
)


@attrs.frozen
class Scene:
    """A submitted post that waits, while relayers come and go."""

    on: Stage
    proxy: RpcProxy
    world: World
    database_url: str
    key: str
    outcomes: list[object]

    @asynccontextmanager
    async def killed_at(self, fault: Fault, reached: str) -> AsyncIterator[None]:
        """Start a relayer that meets `fault`. Kill it when the query shows that the previous step is done."""
        with ExitStack() as faults:
            faults.enter_context(self.proxy.fault(fault))
            async with relayer_process(self.database_url, self.proxy.url, self.key) as process:
                while not self.proxy.seen(fault.method):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.02)
                await self.on.until(reached)
                yield
                await kill_9(process)

    async def finish(self) -> None:
        """Start a new relayer, which finishes the killed one's work."""
        async with relayer_process(self.database_url, self.proxy.url, self.key):
            while not self.outcomes:
                await self.world.anvil.call("evm_mine")
                await anyio.sleep(0.05)
        (outcome,) = self.outcomes
        assert isinstance(outcome, RelayMined)
        assert await self.on.fetchval("select hash from relay_tx_versions") == outcome.tx_hash
        async with self.on.database.connection() as connection:
            assert await relay_violations(connection, self.on.rpc, stuck_after=0) == []


@pytest.fixture
def key(wallets: DevWallets) -> str:
    return wallets.with_role("relayer")[0].private_key


@pytest.fixture
async def scene(world: World, database_url: str, ops: Ops, client: Wallet, key: str) -> AsyncIterator[Scene]:
    outcomes: list[object] = []
    async with (
        mining_by_hand(world.anvil),
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, world.anvil.rpc_url) as on,
        anyio.create_task_group() as callers,
    ):

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        callers.start_soon(relay)
        await on.until("select count(*) = 1 from relays")
        yield Scene(on, proxy, world, database_url, key, outcomes)


async def test_killed_before_the_bytes_are_stored(scene: Scene) -> None:
    async with scene.killed_at(Hang("eth_call"), "select state = 'queued' from relays"):
        assert await scene.on.fetchval("select count(*) from relay_txs") == 0
    await scene.finish()


async def test_kill_before_broadcast_recovers(scene: Scene) -> None:
    async with scene.killed_at(Hang("eth_sendRawTransaction"), "select state = 'signed' from relays"):
        assert await pooled(scene.world.anvil) == 0
    await scene.finish()


async def test_killed_after_a_node_has_the_bytes(scene: Scene) -> None:
    async with scene.killed_at(SwallowAnswer("eth_sendRawTransaction"), "select state = 'signed' from relays"):
        await until_pooled(scene.world.anvil)
    await scene.finish()


async def test_kill_before_the_receipt_recovers(scene: Scene) -> None:
    async def mine_when_pooled() -> None:
        await until_pooled(scene.world.anvil)
        await scene.world.anvil.call("evm_mine")

    async with anyio.create_task_group() as miner:
        miner.start_soon(mine_when_pooled)
        async with scene.killed_at(Hang("eth_getTransactionReceipt"), "select state = 'signed' from relays"):
            pass
    await scene.finish()


async def test_next_caller_gets_the_outcome_of_an_abandoned_relay(
    world: World, database_url: str, ops: Ops, client: Wallet, key: str
) -> None:
    post = ops.post(client)
    async with (
        mining_by_hand(world.anvil),
        stage(database_url, world.anvil.rpc_url) as first,
        relayer_process(database_url, world.anvil.rpc_url, key),
    ):
        async with anyio.create_task_group() as callers:
            callers.start_soon(first.relaying.relay, post)
            await first.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
            callers.cancel_scope.cancel()
        outcomes: list[object] = []

        async def again() -> None:
            outcomes.append(await first.relaying.relay(post))

        async with anyio.create_task_group() as callers:
            callers.start_soon(again)
            await anyio.wait_all_tasks_blocked()
            await world.anvil.call("evm_mine")
        assert isinstance(outcomes[0], RelayMined)
        assert await first.fetchval("select count(*) from relays") == 1


async def test_killed_leader_is_replaced_without_duplicates(
    world: World, database_url: str, ops: Ops, client: Wallet, key: str
) -> None:
    outcomes: list[object] = []
    async with stage(database_url, world.anvil.rpc_url) as on:

        async def caller() -> None:
            for _ in range(5):
                outcomes.append(await on.relaying.relay(ops.post(client)))

        async with relayer_process(database_url, world.anvil.rpc_url, key) as leader:
            await on.until(HOLDS_ROLE)
            async with (
                relayer_process(database_url, world.anvil.rpc_url, key),
                anyio.create_task_group() as callers,
            ):
                for _ in range(20):
                    callers.start_soon(caller)
                await on.until("select count(*) >= 30 from relays where state = 'mined'")
                await kill_9(leader)
                before = await on.fetchval("select count(*) from relays where state = 'mined'")
                with anyio.fail_after(60):
                    await on.until("select count(*) > $1 from relays where state = 'mined'", before)
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 100
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []
