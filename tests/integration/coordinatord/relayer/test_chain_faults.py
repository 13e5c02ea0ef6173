"""Chain events that affect signed transactions."""

import anyio
import pytest

from common.abi import address, boolean, encode, selector
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.blocks import REORG_WINDOW_BLOCKS
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayMined
from devnet.anvil import CHAIN_ID, PAST_STATE_COUNT
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Bench, mine_until_ended, relay_into
from tests.support.faults.rpc_proxy import HttpStatus, rpc_proxy

pytestmark = pytest.mark.anyio


async def test_old_reverted_op_is_refused_without_node_state(bench: Bench) -> None:
    time = next(bench.ops.times)
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage(coalesce_max=1) as on:
        relaying = on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            for n in (3, 4):
                callers.start_soon(relay_into(on, outcomes), bench.request_capacity(n, issued_at=time))
            await on.until(BROADCAST, 2)
            relaying.cancel()
            await bench.anvil.call("evm_mine")
            await bench.anvil.call("anvil_mine", hex(PAST_STATE_COUNT + 1))
            on.start(bench.relayer)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RefusedByChain", "RelayMined"]


async def test_transaction_below_the_base_fee_is_replaced(bench: Bench) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until(BROADCAST, 1)
            offered = int(str(await on.fetchval("select max(max_fee) from relay_tx_versions")))
            await bench.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(3 * offered))
            await bench.anvil.call("evm_mine")
            await on.until("select count(*) = 2 from relay_tx_versions")
            await mine_until_ended(on, bench.anvil)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_txs") == 1
        bumps = await on.fetchval(
            "select bool_and(max_fee >= before_fee * 1.125 and max_tip >= before_tip * 1.125) from"
            " (select max_fee, max_tip, lag(max_fee) over w as before_fee, lag(max_tip) over w as before_tip"
            " from relay_tx_versions window w as (order by created_at)) as v where before_fee is not null"
        )
        assert bumps is True


@pytest.mark.parametrize("depth", [1, 50])
async def test_after_a_reorg_identical_bytes_are_mined_again(bench: Bench, *, depth: int) -> None:
    async with bench.stage() as on:
        on.start(bench.relayer)
        for _ in range(3):
            assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        await bench.anvil.call("anvil_mine", hex(depth - 1))
        before = await on.fetchval(
            "select max(block_hash) from relay_txs where nonce = (select max(nonce) from relay_txs)"
        )
        await bench.anvil.call("anvil_reorg", depth, [])
        await on.until(
            "select count(*) = 0 from relay_txs where nonce = (select max(nonce) from relay_txs) and block_hash = $1",
            before,
        )
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        assert await on.relay_violations() == []


async def test_after_a_reorg_an_op_waits_for_its_dependency(bench: Bench) -> None:
    post = bench.post()
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        bench.stage(proxy.url) as first,
        bench.stage() as second,
    ):
        relaying = first.start(bench.relayer)
        assert isinstance(await first.relaying.relay(post), RelayMined)
        relaying.cancel()
        second.start(signer(bench.world.wallets.with_role("relayer")[1]))
        assert isinstance(await second.relaying.relay(bench.claim(post.subject)), RelayMined)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 503)):
            first.start(bench.relayer)
            await bench.anvil.call("anvil_reorg", 2, [])
            await second.until("select state = 'queued' and requeued = 1 from relays where kind = 'claim'")
            await second.until("select state = 'signed' from relays where kind = 'post'")
        await second.until("select bool_and(state = 'mined') from relays")
        assert await second.relay_violations() == []


@pytest.mark.parametrize("handed_over", ["before the reorg", "after it"])
async def test_op_waits_for_an_account_unaware_of_the_reorg(bench: Bench, *, handed_over: str) -> None:
    post = bench.post()
    claim = bench.claim(post.subject)
    outcomes: list[object] = []
    async with bench.stage() as on, anyio.create_task_group() as callers:
        first = on.start(bench.relayer)
        assert isinstance(await on.relaying.relay(post), RelayMined)
        first.cancel()  # it sees nothing until it runs again
        on.start(signer(bench.world.wallets.with_role("relayer")[1]))
        if handed_over == "before the reorg":
            assert isinstance(await on.relaying.relay(claim), RelayMined)
            await bench.anvil.call("anvil_reorg", 2, [])
            await on.until("select state = 'queued' and requeued = 1 from relays where kind = 'claim'")
        else:
            await bench.anvil.call("anvil_reorg", 1, [])
            callers.start_soon(relay_into(on, outcomes), claim)
            await on.until("select count(*) = 1 from relays where kind = 'claim'")
            await anyio.sleep(0.5)  # staying in the queue causes no event
        assert await on.fetchval("select state::text from relays where kind = 'claim'") == "queued"
        on.start(bench.relayer)
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.relay_violations() == []


@pytest.mark.parametrize("blocks", [1, 0], ids=["another branch", "no new block"])
async def test_chain_set_back_gets_identical_bytes_again(bench: Bench, *, blocks: int) -> None:
    async with bench.stage() as on:
        on.start(bench.relayer)
        snapshot = await bench.anvil.call("evm_snapshot")
        for _ in range(3):
            assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        await bench.anvil.call("evm_revert", snapshot)
        if blocks:
            await bench.anvil.call("anvil_mine", hex(blocks))
        account = hexed(bench.relayer.address)
        while int(await bench.anvil.call("eth_getTransactionCount", account, "latest"), 16) < 3:  # noqa: ASYNC110 - the event is in the node
            await anyio.sleep(0.02)
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        assert await on.relay_violations() == []


async def test_deep_reorg_gets_identical_bytes_again(bench: Bench) -> None:
    async with bench.stage() as on:
        snapshot = await bench.anvil.call("evm_snapshot")
        relaying = on.start(bench.relayer)
        for _ in range(2):
            assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        relaying.cancel()
        await bench.anvil.call("evm_revert", snapshot)
        await bench.anvil.call("anvil_mine", hex(REORG_WINDOW_BLOCKS + 10))
        on.start(bench.relayer)
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)
        await on.until("select bool_and(state = 'mined') from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 3
        assert await on.relay_violations() == []


async def test_reverted_shared_transaction_is_split(bench: Bench) -> None:
    """The account has lost its role. Shared transactions revert, but any account may send the ops individually."""
    outcomes: list[object] = []
    call = selector("setRelayer(address,bool)") + encode(address(bench.relayer.address), boolean(False))
    admin, registry = bench.world.wallets.admin.address, bench.world.market.providers
    await bench.anvil.call("eth_sendTransaction", {"from": admin, "to": registry, "data": hexed(call)})
    async with bench.stage() as on:
        async with anyio.create_task_group() as callers:
            for _ in range(3):
                callers.start_soon(relay_into(on, outcomes), bench.request_capacity())
            await on.until("select count(*) = 3 from relays")
            on.start(bench.relayer)
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select count(*) from relay_txs where not succeeded") == 1
        assert await on.fetchval("select count(*) from relay_txs where succeeded") == 3


async def test_relay_ends_despite_broken_database_connections(bench: Bench) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), bench.post())
            await on.until(BROADCAST, 1)
            await on.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await bench.anvil.call("evm_mine")
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_tx_versions") == 1


@pytest.mark.parametrize(("minutes", "held_back"), [(20, False), (1, True)], ids=["retired", "restarting"])
async def test_vanished_block_delays_refusals_only_for_a_while(bench: Bench, *, minutes: int, held_back: bool) -> None:
    head = int(await bench.anvil.call("eth_blockNumber"), 16)
    async with bench.stage(queue_timeout_ms=1_000, receipt_wait_s=0.1) as on:
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
        on.start(bench.relayer)
        if held_back:
            with pytest.raises(Retryable):
                await on.relaying.relay(bench.ops.reclaim(bytes(32)))
        else:
            assert isinstance(await on.relaying.relay(bench.ops.reclaim(bytes(32))), RefusedByChain)
