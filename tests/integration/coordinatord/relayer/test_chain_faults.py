"""Chain events that affect signed transactions."""

import anyio
import pytest

from common.abi import address, boolean, encode, selector
from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.blocks import REORG_WINDOW_BLOCKS
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayMined
from devnet.anvil import CHAIN_ID, PAST_STATE_COUNT
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, hexed, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, mine_until_ended, relay_into, stage
from tests.support.faults.rpc_proxy import HttpStatus, rpc_proxy
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

SIGNED = "select count(*) = $1 from relays where state = 'signed'"


async def test_two_conflicting_ops_in_one_block_end_with_one_winner(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, provider: Wallet
) -> None:
    time = next(ops.times)
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, coalesce_max=1) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            for n in (3, 4):
                callers.start_soon(relay_into(on, outcomes), ops.request_capacity(provider, n, issued_at=time))
            await on.until(BROADCAST, 2)
            await world.anvil.call("evm_mine")
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RefusedByChain", "RelayMined"]
        (refused,) = (outcome for outcome in outcomes if isinstance(outcome, RefusedByChain))
        assert refused.name == "StaleOp"
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 1


async def test_old_reverted_op_is_refused_without_node_state(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, provider: Wallet
) -> None:
    time = next(ops.times)
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, coalesce_max=1) as on:
        relaying = on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            for n in (3, 4):
                callers.start_soon(relay_into(on, outcomes), ops.request_capacity(provider, n, issued_at=time))
            await on.until(BROADCAST, 2)
            relaying.cancel()
            await world.anvil.call("evm_mine")
            await world.anvil.call("anvil_mine", hex(PAST_STATE_COUNT + 1))
            on.start(relayer_wallet)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RefusedByChain", "RelayMined"]


async def test_transaction_below_the_base_fee_is_replaced(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            offered = int(str(await on.fetchval("select max(max_fee) from relay_tx_versions")))
            await world.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(3 * offered))
            await world.anvil.call("evm_mine")
            await on.until("select count(*) = 2 from relay_tx_versions")
            await mine_until_ended(on, world.anvil)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_txs") == 1
        bumps = await on.fetchval(
            "select bool_and(max_fee >= before_fee * 1.125 and max_tip >= before_tip * 1.125) from"
            " (select max_fee, max_tip, lag(max_fee) over w as before_fee, lag(max_tip) over w as before_tip"
            " from relay_tx_versions window w as (order by created_at)) as v where before_fee is not null"
        )
        assert bumps is True


@pytest.mark.parametrize("depth", [1, 5, 50])
async def test_after_a_reorg_identical_bytes_are_mined_again(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, depth: int
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        for _ in range(3):
            assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        await world.anvil.call("anvil_mine", hex(depth - 1))
        before = await on.fetchval(
            "select max(block_hash) from relay_txs where nonce = (select max(nonce) from relay_txs)"
        )
        await world.anvil.call("anvil_reorg", depth, [])
        await on.until(
            "select count(*) = 0 from relay_txs where nonce = (select max(nonce) from relay_txs) and block_hash = $1",
            before,
        )
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_after_a_reorg_an_op_waits_for_its_dependency(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    post = ops.post(client)
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url) as first,
        stage(database_url, world.anvil.rpc_url) as second,
    ):
        relaying = first.start(relayer_wallet)
        assert isinstance(await first.relaying.relay(post), RelayMined)
        relaying.cancel()
        second.start(signer(world.wallets.with_role("relayer")[1]))
        assert isinstance(await second.relaying.relay(ops.claim(provider, post.subject)), RelayMined)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 503)):
            first.start(relayer_wallet)
            await world.anvil.call("anvil_reorg", 2, [])
            await second.until("select state = 'queued' and requeued = 1 from relays where kind = 'claim'")
            await second.until("select state = 'signed' from relays where kind = 'post'")
        await second.until("select bool_and(state = 'mined') from relays")
        async with second.database.connection() as connection:
            assert await relay_violations(connection, second.rpc, stuck_after=0) == []


@pytest.mark.parametrize("handed_over", ["before the reorg", "after it"])
async def test_op_waits_for_an_account_unaware_of_the_reorg(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    provider: Wallet,
    handed_over: str,
) -> None:
    post = ops.post(client)
    claim = ops.claim(provider, post.subject)
    outcomes: list[object] = []
    async with stage(database_url, world.anvil.rpc_url) as on, anyio.create_task_group() as callers:
        first = on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(post), RelayMined)
        first.cancel()  # it sees nothing until it runs again
        on.start(signer(world.wallets.with_role("relayer")[1]))
        if handed_over == "before the reorg":
            assert isinstance(await on.relaying.relay(claim), RelayMined)
            await world.anvil.call("anvil_reorg", 2, [])
            await on.until("select state = 'queued' and requeued = 1 from relays where kind = 'claim'")
        else:
            await world.anvil.call("anvil_reorg", 1, [])
            callers.start_soon(relay_into(on, outcomes), claim)
            await on.until("select count(*) = 1 from relays where kind = 'claim'")
            await anyio.sleep(0.5)  # staying in the queue causes no event
        assert await on.fetchval("select state::text from relays where kind = 'claim'") == "queued"
        on.start(relayer_wallet)
        await on.until("select bool_and(state = 'mined') from relays")
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


@pytest.mark.parametrize("blocks", [1, 0], ids=["another branch", "no new block"])
async def test_chain_set_back_gets_identical_bytes_again(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, blocks: int
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        snapshot = await world.anvil.call("evm_snapshot")
        for _ in range(3):
            assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        await world.anvil.call("evm_revert", snapshot)
        if blocks:
            await world.anvil.call("anvil_mine", hex(blocks))
        account = hexed(relayer_wallet.address)
        while int(await world.anvil.call("eth_getTransactionCount", account, "latest"), 16) < 3:  # noqa: ASYNC110 - the event is in the node
            await anyio.sleep(0.02)
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_deep_reorg_gets_identical_bytes_again(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        snapshot = await world.anvil.call("evm_snapshot")
        relaying = on.start(relayer_wallet)
        for _ in range(2):
            assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        relaying.cancel()
        await world.anvil.call("evm_revert", snapshot)
        await world.anvil.call("anvil_mine", hex(REORG_WINDOW_BLOCKS + 10))
        on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_reverted_shared_transaction_is_split(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, provider: Wallet
) -> None:
    """The account has lost its role. Shared transactions revert, but any account may send the ops individually."""
    outcomes: list[object] = []
    call = selector("setRelayer(address,bool)") + encode(address(relayer_wallet.address), boolean(False))
    admin, registry = world.wallets.admin.address, world.market.providers
    await world.anvil.call("eth_sendTransaction", {"from": admin, "to": registry, "data": hexed(call)})
    async with stage(database_url, world.anvil.rpc_url) as on:
        async with anyio.create_task_group() as callers:
            for _ in range(3):
                callers.start_soon(relay_into(on, outcomes), ops.request_capacity(provider))
            await on.until("select count(*) = 3 from relays")
            on.start(relayer_wallet)
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select count(*) from relay_txs where not succeeded") == 1
        assert await on.fetchval("select count(*) from relay_txs where succeeded") == 3


async def test_relay_ends_despite_broken_database_connections(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            await on.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await world.anvil.call("evm_mine")
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_tx_versions") == 1


@pytest.mark.parametrize(("minutes", "held_back"), [(20, False), (1, True)], ids=["retired", "restarting"])
async def test_vanished_block_delays_refusals_only_for_a_while(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, *, minutes: int, held_back: bool
) -> None:
    head = int(await world.anvil.call("eth_blockNumber"), 16)
    async with stage(database_url, world.anvil.rpc_url, queue_timeout_ms=1_000, receipt_wait_s=0.1) as on:
        await on.fetchval(
            "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, block_number,"
            " block_hash, mined_hash, succeeded, broadcast_at) values ($1, $2, 0, $2, '', 0, 'relay', $3, $4, $4,"
            " true, clock_timestamp() - $5 * interval '1 minute') returning id",
            CHAIN_ID,
            b"\xee" * 20,
            head,
            b"\xdd" * 32,
            minutes,
        )
        on.start(relayer_wallet)
        if held_back:
            with pytest.raises(Retryable):
                await on.relaying.relay(ops.reclaim(bytes(32)))
        else:
            assert isinstance(await on.relaying.relay(ops.reclaim(bytes(32))), RefusedByChain)
