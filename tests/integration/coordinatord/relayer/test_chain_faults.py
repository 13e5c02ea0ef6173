"""Chain events that affect signed transactions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from coordinatord.chain.relayer.blocks import REORG_WINDOW_BLOCKS
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayMined
from devnet.anvil import PAST_STATE_COUNT
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, Stage, relay_into
from tests.support.faults.rpc_proxy import HttpStatus, rpc_proxy
from tests.support.invariants.relays import relay_violations

SLA = 60
CLAIMED, SETTLED, CANCELLED = 1, 2, 3
JOB_HAS_STATE = "select state = $2 from jobs where job_id = $1"


@pytest.mark.parametrize("later_blocks", [0, PAST_STATE_COUNT + 1], ids=["in time", "state pruned"])
async def test_old_reverted_op_is_refused_without_node_state(scene: Scene, later_blocks: int) -> None:
    """Two conflicting ops are mined in one block. The relayer reads their receipts at once, or after a restart."""
    time = next(scene.ops.times)
    outcomes: list[object] = []
    async with mining_by_hand(scene.anvil), scene.stage(coalesce_max=1) as stage:
        relaying = stage.start(scene.relayer)
        async with anyio.create_task_group() as callers:
            for n in (3, 4):
                callers.start_soon(relay_into(stage, outcomes), scene.request_capacity(n, issued_at=time))
            await stage.until(BROADCAST, 2)
            if later_blocks:
                relaying.cancel()
            await scene.anvil.call("evm_mine")
            if later_blocks:
                await scene.anvil.call("anvil_mine", hex(later_blocks))
                stage.start(scene.relayer)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RefusedByChain", "RelayMined"]
        (refused,) = (outcome for outcome in outcomes if isinstance(outcome, RefusedByChain))
        assert refused.name == "StaleOp"
        assert await stage.fetchval("select count(distinct block_number) from relay_txs") == 1


@pytest.mark.parametrize("depth", [1, 5, 50])
async def test_after_a_reorg_identical_bytes_are_mined_again(scene: Scene, depth: int) -> None:
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        for _ in range(3):
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await scene.anvil.call("anvil_mine", hex(depth - 1))
        before = await stage.fetchval(
            "select max(block_hash) from relay_txs where nonce = (select max(nonce) from relay_txs)"
        )
        await scene.anvil.call("anvil_reorg", depth, [])
        await stage.until(
            "select count(*) = 0 from relay_txs where nonce = (select max(nonce) from relay_txs) and block_hash = $1",
            before,
        )
        await stage.until("select bool_and(state = 'mined') from relays")
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 3
        await scene.check(stage)


async def test_after_a_reorg_an_op_waits_for_its_dependency(scene: Scene) -> None:
    post = scene.post()
    async with (
        rpc_proxy(scene.anvil.rpc_url) as proxy,
        scene.stage(proxy.url) as first,
        scene.stage() as second,
    ):
        relaying = first.start(scene.relayer)
        assert isinstance(await first.relaying.relay(post), RelayMined)
        relaying.cancel()
        second.start(signer(scene.world.wallets.with_role("relayer")[1]))
        assert isinstance(await second.relaying.relay(scene.claim(post.subject)), RelayMined)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 503)):
            first.start(scene.relayer)
            await scene.anvil.call("anvil_reorg", 2, [])
            await second.until("select state = 'queued' and requeued = 1 from relays where kind = 'claim'")
            await second.until("select state = 'signed' from relays where kind = 'post'")
        await second.until("select bool_and(state = 'mined') from relays")
        async with second.database.connection() as connection:
            assert await relay_violations(connection, second.rpc, stuck_after=0) == []


@pytest.mark.parametrize("blocks", [1, 0], ids=["another branch", "no new block"])
async def test_chain_set_back_gets_identical_bytes_again(scene: Scene, blocks: int) -> None:
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        snapshot = await scene.anvil.call("evm_snapshot")
        for _ in range(3):
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await scene.anvil.call("evm_revert", snapshot)
        if blocks:
            await scene.anvil.call("anvil_mine", hex(blocks))
        account = hexed(scene.relayer.address)
        while int(await scene.anvil.call("eth_getTransactionCount", account, "latest"), 16) < 3:  # noqa: ASYNC110 - the event is in the node
            await anyio.sleep(0.02)
        await stage.until("select bool_and(state = 'mined') from relays")
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 3
        await scene.check(stage)


async def test_deep_reorg_gets_identical_bytes_again(scene: Scene) -> None:
    async with scene.stage() as stage:
        snapshot = await scene.anvil.call("evm_snapshot")
        relaying = stage.start(scene.relayer)
        for _ in range(2):
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        relaying.cancel()
        await scene.anvil.call("evm_revert", snapshot)
        await scene.anvil.call("anvil_mine", hex(REORG_WINDOW_BLOCKS + 10))
        stage.start(scene.relayer)
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await stage.until("select bool_and(state = 'mined') from relays")
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 3
        await scene.check(stage)


async def test_relay_ends_despite_broken_database_connections(scene: Scene) -> None:
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            await stage.until(BROADCAST, 1)
            await stage.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await scene.anvil.call("evm_mine")
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 1


@asynccontextmanager
async def indexed_job(scene: Scene) -> AsyncIterator[tuple[Stage, bytes]]:
    """Post a job. Send each op in a separate transaction. In a shared one, the simulation would reject the second op
    before the block."""
    async with scene.stage(coalesce_max=1, index=scene.ops.book) as stage:
        stage.start(scene.relayer)
        post = scene.post(sla=SLA)
        assert isinstance(await stage.relaying.relay(post), RelayMined)
        yield stage, post.subject
        assert await all_violations(scene.database_url, scene.anvil.rpc_url, scene.ops.book) == []


@asynccontextmanager
async def relayed_into_one_block(stage: Stage, scene: Scene, *relays: NewRelay) -> AsyncIterator[dict[bytes, object]]:
    """Sign in this order, with all in the pool inside the block. Mine when it ends. Yields outcomes by dedupe key."""
    outcomes: dict[bytes, object] = {}

    async def run(relay: NewRelay) -> None:
        outcomes[relay.dedupe] = await stage.relaying.relay(relay)

    before = await stage.fetchval("select coalesce(max(id), 0) from relay_txs")
    async with mining_by_hand(scene.anvil), anyio.create_task_group() as callers:
        for count, relay in enumerate(relays, 1):
            callers.start_soon(run, relay)
            broadcast = "select count(*) = $2 from relay_txs where id > $1 and broadcast_at is not null"
            await stage.until(broadcast, before, count)
        yield outcomes
        await scene.anvil.call("evm_mine")
    assert await stage.fetchval("select count(distinct block_number) from relay_txs where id > $1", before) == 1


@pytest.mark.parametrize("claim_first", [True, False])
async def test_claim_and_cancel_in_one_block_end_with_the_first(scene: Scene, claim_first: bool) -> None:
    async with indexed_job(scene) as (stage, job):
        both = [scene.claim(job), scene.cancel(job)]
        first, second = both if claim_first else reversed(both)
        async with relayed_into_one_block(stage, scene, first, second) as outcomes:
            pass
        assert isinstance(outcomes[first.dedupe], RelayMined)
        refused = outcomes[second.dedupe]
        assert isinstance(refused, RefusedByChain)
        assert refused.name == ("NotCancellable" if claim_first else "NotOpen")
        await stage.until(JOB_HAS_STATE, job, CLAIMED if claim_first else CANCELLED)


@pytest.mark.parametrize("late", [0, 1], ids=["in the last second", "a second too late"])
async def test_settle_and_reclaim_in_one_block_end_the_job_once(scene: Scene, late: int) -> None:
    async with indexed_job(scene) as (stage, job):
        assert isinstance(await stage.relaying.relay(scene.claim(job)), RelayMined)
        await stage.until(JOB_HAS_STATE, job, CLAIMED)
        claimed_at = await stage.fetchval("select claimed_at from jobs where job_id = $1", job)
        assert isinstance(claimed_at, int)
        settle = scene.settle(job)
        async with relayed_into_one_block(stage, scene, settle) as outcomes:
            reclaim = {
                "from": hexed(scene.client.address),  # any account may
                "to": scene.world.market.jobs,
                "data": hexed(scene.ops.reclaim(job).calldata),
                "gas": hex(1_000_000),
            }
            sent = await scene.anvil.call("eth_sendTransaction", reclaim)
            await scene.anvil.call("evm_setNextBlockTimestamp", claimed_at + SLA + late)
        receipt = await scene.anvil.call("eth_getTransactionReceipt", sent)
        assert int(receipt["blockNumber"], 16) == await stage.fetchval("select max(block_number) from relay_txs")
        assert int(receipt["status"], 16) == late
        if late:
            refused = outcomes[settle.dedupe]
            assert isinstance(refused, RefusedByChain)
            assert refused.name in ("SlaExpired", "NotClaimed")  # depends on their order
        else:
            assert isinstance(outcomes[settle.dedupe], RelayMined)
        await stage.until(JOB_HAS_STATE, job, CANCELLED if late else SETTLED)
