"""Ops go through the outbox to the chain, and callers get their outcomes."""

import anyio
import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import outbox_sql, relaying
from coordinatord.chain.relayer.outbox_sql import Priority, QueuedRelay
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayBusy, RelayMined
from devnet.accounts import DevWallets
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.integration.coordinatord.relayer.running import stage
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


async def test_a_post_is_mined_and_its_hash_is_the_chains(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        outcome = await on.relaying.relay(ops.post(client))
        assert isinstance(outcome, RelayMined)
        receipt = await world.anvil.call("eth_getTransactionReceipt", "0x" + outcome.tx_hash.hex())
        assert int(receipt["blockNumber"], 16) == outcome.block_number
        assert int(receipt["status"], 16) == 1
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_op_the_chain_would_refuse_costs_no_nonce(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        outcome = await on.relaying.relay(ops.reclaim(bytes(32)))
        assert isinstance(outcome, RefusedByChain)
        assert outcome.name == "UnknownJob"
        assert await on.fetchval("select count(*) from relay_txs") == 0


async def test_refused_op_in_a_shared_transaction_harms_no_other(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, provider: Wallet
) -> None:
    """Two requests with the same timestamp: each passes alone, and the second is stale after the first."""
    first, second = (ops.request_capacity(provider, n, issued_at=next(ops.times)) for n in (3, 4))
    same_time = ops.request_capacity(provider, 7, issued_at=next(ops.times) - 2)
    outcomes: dict[int, object] = {}
    async with stage(database_url, world.anvil.rpc_url) as on:

        async def relay(number: int, op: object) -> None:
            outcomes[number] = await on.relaying.relay(op)  # type: ignore[arg-type] # built above

        async with anyio.create_task_group() as callers:
            for number, op in enumerate((first, same_time, second)):
                callers.start_soon(relay, number, op)
                await on.until("select count(*) = $1 from relays", number + 1)
            on.start(relayer_wallet)
        assert isinstance(outcomes[0], RelayMined)
        assert outcomes[1] == RefusedByChain("StaleOp", outcomes[1].raw)  # type: ignore[attr-defined] # checked by ==
        assert isinstance(outcomes[2], RelayMined)
        assert outcomes[2].tx_hash == outcomes[0].tx_hash
        assert await on.fetchval("select count(*) from relay_txs") == 1


async def test_the_same_request_again_joins_the_one_under_way(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    post = ops.post(client)
    outcomes: list[object] = []
    async with stage(database_url, world.anvil.rpc_url) as on:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(post))

        async with anyio.create_task_group() as callers:
            for _ in range(20):
                callers.start_soon(relay)
            await on.until("select count(*) = 1 from relays")
            on.start(relayer_wallet)
        assert isinstance(outcomes[0], RelayMined)
        assert outcomes == [outcomes[0]] * 20
        again = await on.relaying.relay(post)
        assert isinstance(again, RefusedByChain)
        assert again.name == "DuplicateJob"
        assert await on.fetchval("select count(*) from relay_txs") == 1


@pytest.mark.parametrize("reused", [False, True])
async def test_lost_row_ends_the_wait(world: World, database_url: str, ops: Ops, client: Wallet, reused: bool) -> None:
    """As after a failover: the row is lost, and another request may have its number."""
    async with stage(database_url, world.anvil.rpc_url) as on, on.database.connection() as connection:
        queued = await on.relaying.submit(ops.post(client))
        assert isinstance(queued, QueuedRelay)
        await connection.execute("create temporary table moved as select * from relays")
        await connection.execute("update moved set dedupe = '\\x01', state = 'mined'")
        await connection.execute("delete from relays")
        if reused:
            await connection.execute("insert into relays overriding system value select * from moved")
        with anyio.fail_after(5), pytest.raises(Retryable, match="send the same request again"):
            await on.relaying.wait(queued)


async def test_the_ninth_op_of_a_subject_is_busy(world: World, database_url: str, ops: Ops, provider: Wallet) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on, anyio.create_task_group() as callers:
        for n in range(8):
            callers.start_soon(on.relaying.relay, ops.request_capacity(provider, n + 1))
        await on.until("select count(*) = 8 from relays")
        assert await on.relaying.relay(ops.request_capacity(provider, 9)) == RelayBusy()
        callers.cancel_scope.cancel()


async def test_beyond_the_depth_the_queue_is_full(world: World, database_url: str, ops: Ops, client: Wallet) -> None:
    async with (
        stage(database_url, world.anvil.rpc_url, max_depth=3) as on,
        anyio.create_task_group() as callers,
    ):
        for _ in range(3):
            callers.start_soon(on.relaying.relay, ops.post(client))
        await on.until("select count(*) = 3 from relays")
        with pytest.raises(Retryable) as full:
            await on.relaying.relay(ops.post(client))
        assert full.value.code == "relay_queue_full"
        assert await on.fetchval("select count(*) from relays") == 3
        callers.cancel_scope.cancel()


async def test_burst_beyond_the_depth_waits_for_room(
    *,
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relaying, "_QUEUE_ROOM_WAIT_S", 30.0)  # of a busy machine
    outcomes: list[object] = []
    async with stage(database_url, world.anvil.rpc_url, max_depth=3) as on:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        async with anyio.create_task_group() as callers:
            for _ in range(4):
                callers.start_soon(relay)
            await on.until("select count(*) = 3 from relays")
            on.start(relayer_wallet)
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 4


async def test_a_queue_that_others_have_filled_has_room_for_exits(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with (
        stage(database_url, world.anvil.rpc_url, max_depth=3) as on,
        anyio.create_task_group() as callers,
    ):
        for _ in range(3):
            callers.start_soon(on.relaying.relay, ops.post(client))
        await on.until("select count(*) = 3 from relays")
        callers.start_soon(on.relaying.relay, ops.reclaim(bytes(32)))
        await on.until("select count(*) = 1 from relays where kind = 'reclaim'")
        callers.cancel_scope.cancel()


async def test_a_relay_that_nobody_takes_times_out_and_is_never_signed(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url, queue_timeout_ms=100) as on:
        with pytest.raises(Retryable) as late:
            await on.relaying.relay(ops.post(client))
        assert late.value.code == "relay_queue_timeout"
        assert await on.fetchval("select state::text from relays") == "dropped"


async def test_two_accounts_share_one_outbox(
    world: World, database_url: str, ops: Ops, client: Wallet, wallets: DevWallets
) -> None:
    outcomes: list[object] = []
    async with stage(database_url, world.anvil.rpc_url, coalesce_max=2) as on:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        async with anyio.create_task_group() as callers:
            for _ in range(60):
                callers.start_soon(relay)
            await on.until("select count(*) = 60 from relays")
            for wallet in wallets.with_role("relayer"):
                on.start(signer(wallet))
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 60
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_batch_posts_fill_at_most_the_next_block(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    usual = (await world.anvil.call("eth_getBlockByNumber", "latest", False))["gasLimit"]
    batch = [attrs.evolve(ops.post(client), priority=Priority.BATCH_POST) for _ in range(100)]
    signed = "select count(*) from relays where tx_id is not null and priority = 3"
    lone = ops.post(client)
    try:
        await world.anvil.call("evm_setBlockGasLimit", hex(4_000_000))
        await world.anvil.call("evm_mine")
        async with (
            mining_by_hand(world.anvil),
            stage(database_url, world.anvil.rpc_url) as on,
            anyio.create_task_group() as callers,
        ):
            on.start(relayer_wallet)
            for post in batch:
                callers.start_soon(on.relaying.relay, post)
            await on.until(f"select ({signed}) > 0")
            callers.start_soon(on.relaying.relay, lone)
            await on.until("select tx_id is not null from relays where dedupe = $1", lone.dedupe)
            assert await on.fetchval(signed) == 64  # one round takes more from batches than the block holds
            while await on.fetchval(signed) != len(batch):
                await world.anvil.call("evm_mine")
                await anyio.sleep(0.05)
            callers.cancel_scope.cancel()
    finally:
        await world.anvil.call("evm_setBlockGasLimit", usual)


async def test_a_request_cancelled_before_it_is_written_is_not_relayed(
    world: World, database_url: str, ops: Ops, client: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on, anyio.create_task_group() as callers:
        async with on.database.connection() as other, other.transaction():
            await outbox_sql.lock_outbox(other)
            callers.start_soon(on.relaying.submit, ops.post(client))
            await on.until("select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted")
            with anyio.move_on_after(0.1):
                await on.relaying.submit(ops.post(client))  # waits for the first op's transaction
        await on.relaying.submit(ops.post(client))
        assert await on.fetchval("select count(*) from relays") == 2
