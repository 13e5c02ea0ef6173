"""Overdue jobs are reclaimed once, without any request."""

from collections.abc import AsyncIterator

import pytest

from common.secp256k1 import Wallet
from coordinatord.api.provider_ops.reclaimer import ReclaimWorker
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.accounts import DevWallets
from devnet.world import World
from tests.integration.coordinatord.relayer.ops import Ops, raw, signer
from tests.integration.coordinatord.relayer.running import Stage, stage

SLA = 60


@pytest.fixture
def ops(world: World) -> Ops:
    return Ops.of(world.market)


@pytest.fixture
async def on(world: World, database_url: str, wallets: DevWallets, ops: Ops) -> AsyncIterator[Stage]:
    async with stage(database_url, world.anvil.rpc_url, index=ops.book) as running:
        running.start(signer(wallets.with_role("relayer")[0]))
        yield running


async def claimed_job(on: Stage, ops: Ops, client: Wallet, provider: Wallet) -> bytes:
    post = ops.post(client, sla=SLA)
    assert isinstance(await on.relaying.relay(post), RelayMined)
    assert isinstance(await on.relaying.relay(ops.claim(provider, post.subject)), RelayMined)
    return post.subject


async def pass_sla(world: World) -> None:
    await world.anvil.call("evm_increaseTime", SLA + 1)
    await world.anvil.call("evm_mine")


async def test_a_claimed_job_past_its_window_is_reclaimed_and_no_other(
    world: World, on: Stage, ops: Ops, wallets: DevWallets
) -> None:
    client, provider = signer(wallets.with_role("client")[0]), signer(wallets.with_role("provider")[0])
    overdue = await claimed_job(on, ops, client, provider)
    await pass_sla(world)
    fresh = await claimed_job(on, ops, client, provider)
    worker = ReclaimWorker(on.database, on.notices, raw(world.market.jobs), max_depth=32)
    on.tasks.start_soon(worker.run)
    await on.until("select state = 3 and ended_because = 4 from jobs where job_id = $1", overdue)
    assert await on.fetchval("select state from jobs where job_id = $1", fresh) == 1


async def test_looking_twice_queues_one_reclaim(world: World, on: Stage, ops: Ops, wallets: DevWallets) -> None:
    client, provider = signer(wallets.with_role("client")[0]), signer(wallets.with_role("provider")[0])
    overdue = await claimed_job(on, ops, client, provider)
    await pass_sla(world)
    await on.until("select block_time > $1 + claimed_at from index_position, jobs where job_id = $2", SLA, overdue)
    looking = [ReclaimWorker(on.database, on.notices, raw(world.market.jobs), max_depth=32) for _ in range(2)]
    async with on.database.connection() as connection, connection.transaction():
        # Both see it, because nothing queued by the first is visible before this transaction ends.
        assert [await worker.queue_overdue(connection) for worker in looking] == [1, 1]
        assert await looking[0].queue_overdue(connection) == 0
    await on.until("select state = 3 from jobs where job_id = $1", overdue)
    assert await on.fetchval("select count(*) from relays where kind = 'reclaim'") == 1
