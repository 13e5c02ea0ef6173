"""Several ops of one job in one block: signed in sequence, and split if one of them is refused or lost."""

from collections.abc import Awaitable, Callable

import anyio
import attrs
import pytest

from common.abi import boolean, encode, selector, uint
from coordinatord.chain.relayer.op_gas import PlannedGas
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from tests.integration.coordinatord.relayer.mining import (
    ahead_of_the_relayer,
    mining_by_hand,
    money_moves,
    until_pooled,
)
from tests.integration.coordinatord.relayer.ops import hexed, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, mine_until_ended, relay_into
from tests.support.faults.rpc_proxy import ErrorAnswer, Hang, RefuseTransactions

ENDED = "select count(*) = 0 from relays where state in ('queued', 'signed')"
SIMULATE = "eth_simulateV1"
_ENDS = (
    "select string_agg(kind || ' ' || state || coalesce(' ' || reason, ''), ', ' order by id) from relays"
    " where state not in ('queued', 'signed')"
)


@attrs.frozen
class Job:
    """Ops of one job, in order."""

    post: NewRelay
    claim: NewRelay
    settle: NewRelay

    @classmethod
    def of(cls, scene: Scene) -> "Job":
        post = scene.post()
        return cls(post, scene.claim(post.subject), scene.settle(post.subject))

    @property
    def ops(self) -> list[NewRelay]:
        return [self.post, self.claim, self.settle]


async def lose_money(scene: Scene) -> None:
    await money_moves(scene.world, scene.client)


async def provider_is_unlisted(scene: Scene) -> None:
    ids, admin = scene.world.market.provider_ids, scene.world.wallets.admin.address
    operator = next(one for one in ids if one.lower() == hexed(scene.provider.address))
    call = selector("setListed(uint32,bool)") + encode(uint(ids[operator]), boolean(False))
    await ahead_of_the_relayer(scene.anvil, admin, scene.world.market.providers, call)


async def test_op_after_a_broadcast_gets_the_next_nonce(scene: Scene) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        stage.start(scene.relayer)
        async with anyio.create_task_group() as callers:
            for n, op in enumerate(Job.of(scene).ops, 1):
                callers.start_soon(relay_into(stage, outcomes), op)
                await stage.until(BROADCAST, n)
            await scene.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await stage.fetchval("select count(distinct block_number) from relay_txs") == 1
        kinds = "select array_agg(kind order by nonce) from relays r join relay_txs t on t.id = r.tx_id"
        assert await stage.fetchval(kinds) == ["post", "claim", "settle"]
        await scene.check(stage)


async def test_rival_claim_and_early_settle_delay_no_other_op(scene: Scene) -> None:
    job = Job.of(scene)
    rival = scene.ops.claim(signer(scene.world.wallets.with_role("provider")[1]), job.post.subject)
    rival = attrs.evolve(rival, dedupe=b"rival")
    early = Job.of(scene)
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        await stage.queue([job.post, job.claim, rival, job.settle, early.post, early.settle, early.claim])
        stage.start(scene.relayer)
        await until_pooled(scene.anvil)
        await scene.anvil.call("evm_mine")
        await stage.until("select count(*) > 0 from relays where state = 'mined'")  # later ops wait for the next one
        await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == (
            "post mined, claim mined, claim refused NotOpen, settle mined, post mined, settle mined, claim mined"
        )
        assert await stage.fetchval("select count(distinct block_number) from relay_txs") == 2
        await scene.check(stage)


async def test_independent_exits_precede_posts_with_chains(scene: Scene) -> None:
    first = Job.of(scene)
    async with scene.stage() as stage:
        relaying = stage.start(scene.relayer)
        await stage.queue([first.post, first.claim])
        await stage.until(ENDED)
        relaying.cancel()
        await stage.queue([*Job.of(scene).ops, first.settle])
        stage.start(scene.relayer)
        await stage.until(ENDED)
        nonces = await stage.fetchval(
            "select array_agg(distinct t.nonce) from relays r join relay_txs t on t.id = r.tx_id"
        )
        assert len(nonces) == 3
        of_settles = "select array_agg(t.nonce order by r.id) from relays r join relay_txs t on t.id = r.tx_id"
        assert await stage.fetchval(of_settles + " where r.kind = 'settle'") == [max(nonces), max(nonces) - 1]


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (lose_money, "post refused InsufficientBalance, claim refused UnknownJob, settle refused UnknownJob"),
        (provider_is_unlisted, "post mined, claim refused NotListed, settle refused NotClaimed"),
    ],
)
async def test_op_after_a_refused_op_is_refused_for_its_own_reason(
    scene: Scene, happens: Callable[[Scene], Awaitable[None]], ends: str
) -> None:
    async with mining_by_hand(scene.anvil), scene.stage() as stage:
        await stage.queue(Job.of(scene).ops)
        stage.start(scene.relayer)
        await until_pooled(scene.anvil)
        await happens(scene)
        await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == ends
        assert await stage.fetchval("select count(*) from relay_txs") == 1
        await scene.check(stage)


@pytest.mark.parametrize(
    ("kept_out", "ends"),
    [
        ("claim", "post mined, claim refused PaymentRefused, settle refused NotClaimed"),
        ("settle", "post mined, claim mined, settle refused SlaExpired"),
    ],
)
async def test_later_transaction_of_a_chain_is_refused_alone(scene: Scene, kept_out: str, ends: str) -> None:
    job = Job.of(scene)
    late = {"claim": 1, "settle": 2}[kept_out]
    async with mining_by_hand(scene.anvil), scene.stage_behind_proxy(coalesce_max=1) as (stage, proxy):
        marks = [op.calldata[:4] for op in job.ops[late:]]
        with proxy.fault(RefuseTransactions(lambda raw: any(mark in raw for mark in marks), "txpool is full")):
            await stage.queue(job.ops)
            stage.start(scene.relayer)
            await stage.until(BROADCAST, late)
            await stage.until("select count(*) = 3 from relays where state = 'signed'")
            await scene.anvil.call("evm_mine")
            await stage.until("select count(*) = $1 from relays where state = 'mined'", late)
            if kept_out == "claim":
                await money_moves(scene.world, scene.client)
            else:
                await scene.anvil.call("evm_increaseTime", 400)
        await stage.until(BROADCAST, 3)
        await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == ends
        await scene.check(stage)


async def test_starved_chain_is_split_and_resent_op_by_op(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlannedGas, "share", lambda *_: 0)
    async with scene.stage() as stage:
        jobs = [Job.of(scene) for _ in range(3)]
        await stage.queue([op for job in jobs for op in job.ops])
        stage.start(scene.relayer)
        await stage.until(ENDED)
        assert await stage.fetchval("select count(*) from relays where state = 'mined' and requeued = 1") == 9
        assert await stage.fetchval("select count(*) from relay_txs where not succeeded") == 1
        await scene.check(stage)


@pytest.mark.parametrize("apart", [False, True], ids=["one transaction", "three nonces"])
async def test_reorg_of_a_chain_is_mined_again_in_order(scene: Scene, apart: bool) -> None:
    async with scene.stage(coalesce_max=1 if apart else 64) as stage:
        async with mining_by_hand(scene.anvil):
            await stage.queue(Job.of(scene).ops)
            stage.start(scene.relayer)
            await stage.until(BROADCAST, 3 if apart else 1)
            await scene.anvil.call("evm_mine")
            await stage.until(ENDED)
            before = await stage.fetchval("select max(block_hash) from relay_txs")
            await scene.anvil.call("anvil_reorg", 1, [])
            await stage.until("select count(*) = 3 from relays where state = 'signed'")
            await until_pooled(scene.anvil)
            await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await stage.fetchval("select bool_and(block_hash <> $1) from relay_txs", before)
        assert await stage.fetchval("select count(*) from relay_tx_versions") == (3 if apart else 1)
        await scene.check(stage)


async def test_an_op_waits_for_one_that_another_account_has_signed(scene: Scene) -> None:
    job = Job.of(scene)
    async with mining_by_hand(scene.anvil), scene.stage_behind_proxy() as (stage, proxy):
        first = stage.start(scene.relayer)
        await stage.queue([job.post])
        await stage.until(BROADCAST, 1)
        first.cancel()
        stage.start(signer(scene.world.wallets.with_role("relayer")[1]))
        await stage.queue([job.claim])
        looked = proxy.seen("eth_estimateGas")
        while proxy.seen("eth_estimateGas") < looked + 2:  # noqa: ASYNC110 - two rounds have looked at it
            await anyio.sleep(0.02)
        assert proxy.seen(SIMULATE) == 0
        assert await stage.fetchval("select state::text from relays where kind = 'claim'") == "queued"
        stage.start(scene.relayer)
        await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == "post mined, claim mined"
        await scene.check(stage)


@pytest.mark.parametrize(
    "fault",
    [ErrorAnswer(SIMULATE, -32601, "the method eth_simulateV1 does not exist/is not available"), Hang(SIMULATE)],
    ids=["a node without it", "a node that does not answer it"],
)
async def test_without_call_simulation_each_op_waits_for_a_block(scene: Scene, fault: ErrorAnswer | Hang) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5) as (stage, proxy):
        with proxy.fault(fault):
            await stage.queue(Job.of(scene).ops)
            stage.start(scene.relayer)
            await stage.until(ENDED)
        assert await stage.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await stage.fetchval("select count(distinct block_number) from relay_txs") == 3
        assert proxy.seen(SIMULATE) == 1
        await scene.check(stage)


async def test_chain_survives_the_loss_of_its_first_nonce(scene: Scene) -> None:
    async with mining_by_hand(scene.anvil), scene.stage(coalesce_max=1) as stage:
        await stage.queue(Job.of(scene).ops)
        stage.start(scene.relayer)
        await stage.until(BROADCAST, 3)
        first = await stage.fetchval(
            "select hash from relay_tx_versions v join relay_txs t on t.id = tx_id order by nonce"
        )
        assert isinstance(first, bytes)
        await scene.anvil.call("anvil_dropTransaction", hexed(first))
        nonce = await scene.anvil.call("eth_getTransactionCount", scene.account, "latest")
        await scene.anvil.call("eth_sendTransaction", {"from": scene.account, "to": scene.account, "nonce": nonce})
        await scene.anvil.call("evm_mine")
        await stage.until("select count(*) = 1 from relay_txs where lost")
        await mine_until_ended(stage, scene.anvil)
        assert await stage.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await stage.fetchval("select array_agg(requeued order by id) from relays") == [1, 1, 1]
        await scene.check(stage)


async def test_below_the_reserve_no_chain_is_started(scene: Scene) -> None:
    async with scene.stage() as stage:
        await scene.anvil.call("anvil_setBalance", hexed(scene.relayer.address), hex(10**15))
        await stage.queue(Job.of(scene).ops)
        stage.start(scene.relayer)
        await stage.until(ENDED)
        assert await stage.fetchval(_ENDS) == (
            "post dropped relayer_funds, claim dropped relayer_funds, settle refused UnknownJob"
        )
        assert await stage.fetchval("select count(*) from relay_txs") == 0
