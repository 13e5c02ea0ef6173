"""Relaying with low funds or high fees. Exits continue while there is any gas."""

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.fees import FeeCeiling
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.integration.coordinatord.relayer.running import Stage, mine_until_ended, relay_into, stage, submit
from tests.support.faults.rpc_proxy import ErrorAnswer, RefuseTransactions, Rewrite, rpc_proxy
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

GWEI = 10**9
CEILING = FeeCeiling(max_fee=20 * GWEI, max_tip=2 * GWEI)


async def refused(on: Stage, *relays: NewRelay) -> list[str | None]:
    codes = []
    for relay in relays:
        with pytest.raises(Retryable) as dropped:
            await on.relaying.relay(relay)
        codes.append(dropped.value.code)
    return codes


async def cost_of(world: World, gas: int) -> str:
    """Return the cost of this much gas at the fees currently offered."""
    told = await world.anvil.call("eth_feeHistory", "0x1", "latest", [])
    return hex(gas * (2 * int(told["baseFeePerGas"][-1], 16) + GWEI))


async def test_low_funds_allow_exits_and_cancels_then_exits_only(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    account = hexed(relayer_wallet.address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        claimed, failing, first, second, third = posts = [ops.post(client) for _ in range(5)]
        for post in posts:
            assert isinstance(await on.relaying.relay(post), RelayMined)
        for post in (claimed, failing):
            assert isinstance(await on.relaying.relay(ops.claim(provider, post.subject)), RelayMined)
        others = (ops.post(client), ops.request_capacity(provider), ops.claim(provider, third.subject))
        await world.anvil.call("anvil_setBalance", account, await cost_of(world, 20_000_000))
        assert await refused(on, *others) == ["relayer_funds"] * 3
        assert isinstance(await on.relaying.relay(ops.cancel(client, first.subject)), RelayMined)
        assert isinstance(await on.relaying.relay(ops.settle(provider, claimed.subject)), RelayMined)
        await world.anvil.call("anvil_setBalance", account, await cost_of(world, 2_000_000))
        assert await refused(on, *others, ops.cancel(client, second.subject)) == ["relayer_funds"] * 4
        assert isinstance(await on.relaying.relay(ops.fail(provider, failing.subject)), RelayMined)
        await world.anvil.call("anvil_setBalance", account, "0x0")
        await world.anvil.call("evm_mine")
        assert await refused(on, ops.cancel(client, second.subject)) == ["relayer_funds"]
        await world.anvil.call("anvil_setBalance", account, hex(10**21))
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)


async def test_one_round_of_others_leaves_the_reserve_untouched(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    account = hexed(relayer_wallet.address)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, coalesce_max=1) as on:
        funds = int(await cost_of(world, 31_000_000), 16)
        await world.anvil.call("anvil_setBalance", account, hex(funds))
        async with anyio.create_task_group() as callers:
            for _ in range(12):
                callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until("select count(*) = 12 from relays")
            on.start(relayer_wallet)
            await on.until("select count(*) > 0 from relays where state = 'signed'")
            set_aside = await on.fetchval("select sum(gas)::bigint from relay_txs")
            assert 0 < int(str(set_aside)) <= 1_000_000
            await world.anvil.call("anvil_setBalance", account, hex(10**21))
            await mine_until_ended(on, world.anvil)
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 12


async def test_exits_are_sent_as_far_as_funds_allow(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    outcomes: list[object] = []
    account = hexed(relayer_wallet.address)
    async with stage(database_url, world.anvil.rpc_url) as on:
        relaying = on.start(relayer_wallet)
        posts = [ops.post(client) for _ in range(6)]
        for post in posts:
            assert isinstance(await on.relaying.relay(post), RelayMined)
            assert isinstance(await on.relaying.relay(ops.claim(provider, post.subject)), RelayMined)
        relaying.cancel()
        fails = [ops.fail(provider, post.subject) for post in posts]

        async def relay(fail: NewRelay) -> None:
            try:
                outcomes.append(await on.relaying.relay(fail))
            except Retryable as refused:
                outcomes.append(refused.code)

        async with anyio.create_task_group() as callers:
            for fail in fails:
                callers.start_soon(relay, fail)
            await on.until("select count(*) = 6 from relays where kind = 'fail' and state = 'queued'")
            await world.anvil.call("anvil_setBalance", account, await cost_of(world, 600_000))  # six together need more
            on.start(relayer_wallet)
        mined = sum(isinstance(outcome, RelayMined) for outcome in outcomes)
        assert 2 <= mined < 6
        assert outcomes.count("relayer_funds") == 6 - mined
        await world.anvil.call("anvil_setBalance", account, hex(10**21))
        outcomes.clear()
        async with anyio.create_task_group() as callers:
            for fail in fails:
                callers.start_soon(relay, fail)
        assert await on.fetchval("select count(*) from relays where kind = 'fail' and state = 'mined'") == 6
        assert await on.fetchval("select count(distinct tx_id) >= $1 from relays where kind = 'fail'", mined)


async def test_above_the_fee_ceiling_only_exits_wait(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url, queue_timeout_ms=1_500, fee_ceiling=CEILING) as on:
        on.start(relayer_wallet)
        post, other = ops.post(client), ops.post(client)
        for relay in (post, other, ops.claim(provider, post.subject)):
            assert isinstance(await on.relaying.relay(relay), RelayMined)
        async with mining_by_hand(world.anvil):
            await world.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(200 * GWEI))
            await world.anvil.call("evm_mine")
            await anyio.sleep(1.1)  # the relayer reads fees once a second while the head stays
            assert await refused(on, ops.post(client), ops.cancel(client, other.subject)) == ["relay_queue_timeout"] * 2
            assert await on.fetchval("select count(*) from relays where reason = 'fees_above_ceiling'") == 2
            assert await refused(on, ops.settle(provider, post.subject)) == ["relay_queue_timeout"]
            settled = "select state::text from relays where kind = 'settle'"
            assert await on.fetchval(settled) == "queued"
            await world.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
            await world.anvil.call("evm_mine")
            await mine_until_ended(on, world.anvil)
        assert await on.fetchval(settled) == "mined"
        assert await on.fetchval("select max(max_fee) <= $1 from relay_tx_versions", 20 * GWEI)
        async with on.database.connection() as connection:
            assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def test_above_the_ceiling_what_came_back_waits_as_well(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url, queue_timeout_ms=1_000, fee_ceiling=CEILING) as on:
        async with mining_by_hand(world.anvil):
            await world.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(200 * GWEI))
            await world.anvil.call("evm_mine")
            post = ops.post(client)
            await on.database.transact(lambda connection: submit(connection, post, max_depth=1))
            await on.fetchval("update relays set requeued = 1 returning id")
            on.start(relayer_wallet)
            assert await refused(on, ops.post(client), post) == ["relay_queue_timeout"] * 2
            assert await on.fetchval("select array_agg(state::text order by id) from relays") == ["queued", "dropped"]
            await world.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
            await world.anvil.call("evm_mine")
            await mine_until_ended(on, world.anvil)
        assert await on.fetchval("select array_agg(state::text order by id) from relays") == ["mined", "dropped"]


async def test_excessive_fee_advice_of_a_node_is_ignored(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    advice = Rewrite("eth_maxPriorityFeePerGas", lambda _params, _tip: hex(5 * 10**14))
    outcomes: list[object] = []
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, fee_ceiling=CEILING) as on,
        anyio.create_task_group() as callers,
    ):
        with proxy.fault(advice, ErrorAnswer("eth_sendRawTransaction", -32000, "transaction underpriced")):
            on.start(relayer_wallet)
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until("select count(*) > 1 from relay_tx_versions")
            while proxy.seen("eth_sendRawTransaction") < 7:  # noqa: ASYNC110 - the event is in the proxy
                await anyio.sleep(0.05)
        await on.until("select state = 'mined' from relays")
        highest = "select max(max_fee) <= $1 and max(max_tip) <= $2 from relay_tx_versions"
        assert await on.fetchval(highest, CEILING.max_fee, CEILING.max_tip)


async def test_hidden_next_transaction_gets_a_higher_fee(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    first: list[bytes] = []

    def is_the_first_version(raw: bytes) -> bool:
        if not first:
            first.append(raw)
        return raw == first[0]

    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, mined_within_s=0.5) as on,
    ):
        with proxy.fault(RefuseTransactions(is_the_first_version, "already known")):
            on.start(relayer_wallet)
            assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)
        assert await on.fetchval("select count(*) >= 2 from relay_tx_versions")
        assert await on.fetchval("select max(max_fee) * 8 >= min(max_fee) * 9 from relay_tx_versions")
