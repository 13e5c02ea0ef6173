"""Ops go through the outbox to the chain, and callers get their outcomes."""

import anyio
import attrs
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import relaying
from coordinatord.chain.relayer.outbox_sql import Priority, QueuedRelay
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayBusy, RelayMined
from devnet.accounts import DevWallets
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed, signer
from tests.integration.coordinatord.relayer.running import Scene, relay_into


async def test_the_same_request_again_joins_the_one_under_way(scene: Scene) -> None:
    post = scene.post()
    outcomes: list[object] = []
    async with scene.stage() as stage:
        async with anyio.create_task_group() as callers:
            for _ in range(20):
                callers.start_soon(relay_into(stage, outcomes), post)
            await stage.until("select count(*) = 1 from relays")
            stage.start(scene.relayer)
        mined = outcomes[0]
        assert isinstance(mined, RelayMined)
        assert outcomes == [mined] * 20
        receipt = await scene.anvil.call("eth_getTransactionReceipt", hexed(mined.tx_hash))
        assert (int(receipt["blockNumber"], 16), int(receipt["status"], 16)) == (mined.block_number, 1)
        again = await stage.relaying.relay(post)
        assert isinstance(again, RefusedByChain)
        assert again.name == "DuplicateJob"
        assert await stage.fetchval("select count(*) from relay_txs") == 1


@pytest.mark.parametrize("reused", [False, True])
async def test_lost_row_ends_the_wait(scene: Scene, reused: bool) -> None:
    """As after a failover: the row is lost, and another request may have its number."""
    async with scene.stage() as stage, stage.database.connection() as connection:
        queued = await stage.relaying.submit(scene.post())
        assert isinstance(queued, QueuedRelay)
        await connection.execute("create temporary table moved as select * from relays")
        await connection.execute("update moved set dedupe = '\\x01', state = 'mined'")
        await connection.execute("delete from relays")
        if reused:
            await connection.execute("insert into relays overriding system value select * from moved")
        with anyio.fail_after(5), pytest.raises(Retryable, match="send the same request again"):
            await stage.relaying.wait(queued)


async def test_the_ninth_op_of_a_subject_is_busy(scene: Scene) -> None:
    async with scene.stage() as stage, anyio.create_task_group() as callers:
        for n in range(8):
            callers.start_soon(stage.relaying.relay, scene.request_capacity(n + 1))
        await stage.until("select count(*) = 8 from relays")
        assert await stage.relaying.relay(scene.request_capacity(9)) == RelayBusy()
        callers.cancel_scope.cancel()


async def test_burst_beyond_the_depth_waits_for_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "_QUEUE_ROOM_WAIT_S", 30.0)  # of a busy machine
    posts = [scene.post() for _ in range(4)]
    async with scene.stage(max_depth=3) as stage, stage.relayed(*posts):
        await stage.until("select count(*) = 3 from relays")
        stage.start(scene.relayer)


async def test_a_relay_that_nobody_takes_times_out_and_is_never_signed(scene: Scene) -> None:
    async with scene.stage(queue_timeout_ms=100) as stage:
        with pytest.raises(Retryable) as late:
            await stage.relaying.relay(scene.post())
        assert late.value.code == "relay_queue_timeout"
        assert await stage.fetchval("select state::text from relays") == "dropped"


async def test_two_accounts_share_one_outbox(scene: Scene, wallets: DevWallets) -> None:
    posts = [scene.post() for _ in range(60)]
    async with scene.stage(coalesce_max=2) as stage:
        async with stage.relayed(*posts):
            await stage.until("select count(*) = 60 from relays")
            for wallet in wallets.with_role("relayer"):
                stage.start(signer(wallet))
        await scene.check(stage)


async def test_batch_posts_fill_at_most_the_next_block(scene: Scene) -> None:
    usual = (await scene.anvil.call("eth_getBlockByNumber", "latest", False))["gasLimit"]
    batch = [attrs.evolve(scene.post(), priority=Priority.BATCH_POST) for _ in range(100)]
    signed = "select count(*) from relays where tx_id is not null and priority = 3"
    lone = scene.post()
    try:
        await scene.anvil.call("evm_setBlockGasLimit", hex(4_000_000))
        await scene.anvil.call("evm_mine")
        async with mining_by_hand(scene.anvil), scene.stage() as stage, anyio.create_task_group() as callers:
            stage.start(scene.relayer)
            for post in batch:
                callers.start_soon(stage.relaying.relay, post)
            await stage.until(f"select ({signed}) > 0")
            callers.start_soon(stage.relaying.relay, lone)
            await stage.until("select tx_id is not null from relays where dedupe = $1", lone.dedupe)
            assert await stage.fetchval(signed) == 64  # one round takes more from batches than the block holds
            while await stage.fetchval(signed) != len(batch):
                await scene.anvil.call("evm_mine")
                await anyio.sleep(0.05)
            callers.cancel_scope.cancel()
    finally:
        await scene.anvil.call("evm_setBlockGasLimit", usual)
