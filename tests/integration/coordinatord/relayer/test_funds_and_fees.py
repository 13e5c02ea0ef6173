"""Relaying with low funds or high fees. Exits continue while there is any gas."""

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.fees import FeeCeiling
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.running import Scene, Stage, mine_until_ended, submit
from tests.support.faults.rpc_proxy import RefuseTransactions

GWEI = 10**9
CEILING = FeeCeiling(max_fee=20 * GWEI, max_tip=2 * GWEI)


async def refused(stage: Stage, *relays: NewRelay) -> list[str | None]:
    codes = []
    for relay in relays:
        with pytest.raises(Retryable) as dropped:
            await stage.relaying.relay(relay)
        codes.append(dropped.value.code)
    return codes


async def cost_of(world: World, gas: int) -> str:
    """Return the cost of this much gas at the fees currently offered."""
    told = await world.anvil.call("eth_feeHistory", "0x1", "latest", [])
    return hex(gas * (2 * int(told["baseFeePerGas"][-1], 16) + GWEI))


async def test_low_funds_allow_exits_and_cancels_then_exits_only(scene: Scene) -> None:
    async with scene.stage() as stage:
        stage.start(scene.relayer)
        claimed, failing, first, second, third = posts = [scene.post() for _ in range(5)]
        for post in posts:
            assert isinstance(await stage.relaying.relay(post), RelayMined)
        for post in (claimed, failing):
            assert isinstance(await stage.relaying.relay(scene.claim(post.subject)), RelayMined)
        others = (scene.post(), scene.request_capacity(), scene.claim(third.subject))
        await scene.anvil.call("anvil_setBalance", scene.account, await cost_of(scene.world, 20_000_000))
        assert await refused(stage, *others) == ["relayer_funds"] * 3
        assert isinstance(await stage.relaying.relay(scene.cancel(first.subject)), RelayMined)
        assert isinstance(await stage.relaying.relay(scene.settle(claimed.subject)), RelayMined)
        await scene.anvil.call("anvil_setBalance", scene.account, await cost_of(scene.world, 2_000_000))
        assert await refused(stage, *others, scene.cancel(second.subject)) == ["relayer_funds"] * 4
        assert isinstance(await stage.relaying.relay(scene.fail(failing.subject)), RelayMined)
        await scene.anvil.call("anvil_setBalance", scene.account, "0x0")
        await scene.anvil.call("evm_mine")
        assert await refused(stage, scene.cancel(second.subject)) == ["relayer_funds"]
        await scene.anvil.call("anvil_setBalance", scene.account, hex(10**21))
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)


async def test_one_round_of_others_leaves_the_reserve_untouched(scene: Scene) -> None:
    async with mining_by_hand(scene.anvil), scene.stage(coalesce_max=1) as stage:
        funds = int(await cost_of(scene.world, 31_000_000), 16)
        await scene.anvil.call("anvil_setBalance", scene.account, hex(funds))
        async with stage.relayed(*[scene.post() for _ in range(12)]):
            await stage.until("select count(*) = 12 from relays")
            stage.start(scene.relayer)
            await stage.until("select count(*) > 0 from relays where state = 'signed'")
            set_aside = await stage.fetchval("select sum(gas)::bigint from relay_txs")
            assert 0 < int(str(set_aside)) <= 1_000_000
            await scene.anvil.call("anvil_setBalance", scene.account, hex(10**21))
            await mine_until_ended(stage, scene.anvil)


async def test_exits_are_sent_as_far_as_funds_allow(scene: Scene) -> None:
    outcomes: list[object] = []
    async with scene.stage() as stage:
        relaying = stage.start(scene.relayer)
        posts = [scene.post() for _ in range(6)]
        for post in posts:
            assert isinstance(await stage.relaying.relay(post), RelayMined)
            assert isinstance(await stage.relaying.relay(scene.claim(post.subject)), RelayMined)
        relaying.cancel()
        fails = [scene.fail(post.subject) for post in posts]

        async def relay(fail: NewRelay) -> None:
            try:
                outcomes.append(await stage.relaying.relay(fail))
            except Retryable as refused:
                outcomes.append(refused.code)

        async with anyio.create_task_group() as callers:
            for fail in fails:
                callers.start_soon(relay, fail)
            await stage.until("select count(*) = 6 from relays where kind = 'fail' and state = 'queued'")
            # Six together need more.
            await scene.anvil.call("anvil_setBalance", scene.account, await cost_of(scene.world, 600_000))
            stage.start(scene.relayer)
        mined = sum(isinstance(outcome, RelayMined) for outcome in outcomes)
        assert 2 <= mined < 6
        assert outcomes.count("relayer_funds") == 6 - mined
        await scene.anvil.call("anvil_setBalance", scene.account, hex(10**21))
        outcomes.clear()
        async with anyio.create_task_group() as callers:
            for fail in fails:
                callers.start_soon(relay, fail)
        assert await stage.fetchval("select count(*) from relays where kind = 'fail' and state = 'mined'") == 6
        assert await stage.fetchval("select count(distinct tx_id) >= $1 from relays where kind = 'fail'", mined)


async def test_above_the_fee_ceiling_only_exits_wait(scene: Scene) -> None:
    async with scene.stage(queue_timeout_ms=1_500, fee_ceiling=CEILING) as stage:
        stage.start(scene.relayer)
        post, other = scene.post(), scene.post()
        for relay in (post, other, scene.claim(post.subject)):
            assert isinstance(await stage.relaying.relay(relay), RelayMined)
        async with mining_by_hand(scene.anvil):
            await scene.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(200 * GWEI))
            await scene.anvil.call("evm_mine")
            await anyio.sleep(1.1)  # the relayer reads fees once a second while the head stays
            assert await refused(stage, scene.post(), scene.cancel(other.subject)) == ["relay_queue_timeout"] * 2
            assert await stage.fetchval("select count(*) from relays where reason = 'fees_above_ceiling'") == 2
            assert await refused(stage, scene.settle(post.subject)) == ["relay_queue_timeout"]
            settled = "select state::text from relays where kind = 'settle'"
            assert await stage.fetchval(settled) == "queued"
            await scene.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
            await scene.anvil.call("evm_mine")
            await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(settled) == "mined"
        assert await stage.fetchval("select max(max_fee) <= $1 from relay_tx_versions", 20 * GWEI)
        await scene.check(stage)


async def test_above_the_ceiling_what_came_back_waits_as_well(scene: Scene) -> None:
    async with scene.stage(queue_timeout_ms=1_000, fee_ceiling=CEILING) as stage:
        async with mining_by_hand(scene.anvil):
            await scene.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(200 * GWEI))
            await scene.anvil.call("evm_mine")
            post = scene.post()
            await stage.database.transact(lambda connection: submit(connection, post, max_depth=1))
            await stage.fetchval("update relays set requeued = 1 returning id")
            stage.start(scene.relayer)
            assert await refused(stage, scene.post(), post) == ["relay_queue_timeout"] * 2
            assert await stage.fetchval("select array_agg(state::text order by id) from relays") == [
                "queued",
                "dropped",
            ]
            await scene.anvil.call("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
            await scene.anvil.call("evm_mine")
            await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval("select array_agg(state::text order by id) from relays") == ["mined", "dropped"]


async def test_hidden_next_transaction_gets_a_higher_fee(scene: Scene) -> None:
    first: list[bytes] = []

    def is_the_first_version(raw: bytes) -> bool:
        if not first:
            first.append(raw)
        return raw == first[0]

    async with scene.stage_behind_proxy(mined_within_s=0.5) as (stage, proxy):
        with proxy.fault(RefuseTransactions(is_the_first_version, "already known")):
            stage.start(scene.relayer)
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        assert await stage.fetchval("select count(*) >= 2 from relay_tx_versions")
        assert await stage.fetchval("select max(max_fee) * 8 >= min(max_fee) * 9 from relay_tx_versions")
