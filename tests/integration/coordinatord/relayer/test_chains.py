"""Several ops of one job in one block: signed in sequence, and split if one of them is refused or lost."""

from collections.abc import Sequence

import anyio
import attrs
import pytest

from common.abi import boolean, encode, selector, uint
from common.secp256k1 import Wallet
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.storage.database.connections import Connection
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import (
    ahead_of_the_relayer,
    mining_by_hand,
    money_moves,
    until_pooled,
)
from tests.integration.coordinatord.relayer.ops import Ops, hexed, signer
from tests.integration.coordinatord.relayer.running import BROADCAST, Bench, Stage, mine_until_ended, relay_into
from tests.support.faults.rpc_proxy import ErrorAnswer, Hang, RefuseTransactions, rpc_proxy

pytestmark = pytest.mark.anyio

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
    def of(cls, ops: Ops, client: Wallet, provider: Wallet) -> "Job":
        post = ops.post(client)
        return cls(post, ops.claim(provider, post.subject), ops.settle(provider, post.subject))

    @property
    def ops(self) -> list[NewRelay]:
        return [self.post, self.claim, self.settle]


async def queue(on: Stage, relays: Sequence[NewRelay]) -> None:
    async def body(connection: Connection) -> None:
        await outbox_sql.submit_all(connection, relays, max_depth=4096)

    await on.database.transact(body)


async def provider_is_unlisted(world: World, provider: Wallet) -> None:
    operator = next(one for one in world.market.provider_ids if one.lower() == hexed(provider.address))
    call = selector("setListed(uint32,bool)") + encode(uint(world.market.provider_ids[operator]), boolean(False))
    await ahead_of_the_relayer(world.anvil, world.wallets.admin.address, world.market.providers, call)


async def test_post_claim_and_settle_share_one_transaction(bench: Bench) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        async with anyio.create_task_group() as callers:
            for op in Job.of(bench.ops, bench.client, bench.provider).ops:
                callers.start_soon(relay_into(on, outcomes), op)
            await on.until("select count(*) = 3 from relays")
            assert await on.fetchval("select array_agg(kind order by id) from relays") == ["post", "claim", "settle"]
            on.start(bench.relayer)
            await until_pooled(bench.anvil)
            await bench.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select array_agg(call_index order by id) from relays") == [0, 1, 2]
        assert await on.fetchval("select count(*) from relay_txs") == 1
        # The claim takes its terms from the post before it.
        assert selector("claimPosted(bytes32,uint64,bytes)") in await on.fetchval("select calldata from relay_txs")
        assert await on.relay_violations() == []


async def test_op_after_a_broadcast_gets_the_next_nonce(bench: Bench) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        on.start(bench.relayer)
        async with anyio.create_task_group() as callers:
            for n, op in enumerate(Job.of(bench.ops, bench.client, bench.provider).ops, 1):
                callers.start_soon(relay_into(on, outcomes), op)
                await on.until(BROADCAST, n)
            await bench.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 1
        kinds = "select array_agg(kind order by nonce) from relays r join relay_txs t on t.id = r.tx_id"
        assert await on.fetchval(kinds) == ["post", "claim", "settle"]
        assert await on.relay_violations() == []


async def test_rival_claim_and_early_settle_delay_no_other_op(bench: Bench) -> None:
    job = Job.of(bench.ops, bench.client, bench.provider)
    rival = bench.ops.claim(signer(bench.world.wallets.with_role("provider")[1]), job.post.subject)
    rival = attrs.evolve(rival, dedupe=b"rival")
    early = Job.of(bench.ops, bench.client, bench.provider)
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        await queue(on, [job.post, job.claim, rival, job.settle, early.post, early.settle, early.claim])
        on.start(bench.relayer)
        await until_pooled(bench.anvil)
        await bench.anvil.call("evm_mine")
        await on.until("select count(*) > 0 from relays where state = 'mined'")  # later ops wait for the next one
        await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == (
            "post mined, claim mined, claim refused NotOpen, settle mined, post mined, settle mined, claim mined"
        )
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 2
        assert await on.relay_violations() == []


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (money_moves, "post refused InsufficientBalance, claim refused UnknownJob, settle refused UnknownJob"),
        (provider_is_unlisted, "post mined, claim refused NotListed, settle refused NotClaimed"),
    ],
    ids=["the payer moves its money", "the provider is taken off the list"],
)
async def test_op_after_a_refused_op_is_refused_for_its_own_reason(bench: Bench, *, happens: object, ends: str) -> None:
    async with mining_by_hand(bench.anvil), bench.stage() as on:
        await queue(on, Job.of(bench.ops, bench.client, bench.provider).ops)
        on.start(bench.relayer)
        await until_pooled(bench.anvil)
        await (
            money_moves(bench.world, bench.client)
            if happens is money_moves
            else provider_is_unlisted(bench.world, bench.provider)
        )
        await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == ends
        assert await on.fetchval("select count(*) from relay_txs") == 1
        assert await on.relay_violations() == []


@pytest.mark.parametrize(
    ("kept_out", "ends"),
    [
        ("claim", "post mined, claim refused PaymentRefused, settle refused NotClaimed"),
        ("settle", "post mined, claim mined, settle refused SlaExpired"),
    ],
)
async def test_later_transaction_of_a_chain_is_refused_alone(bench: Bench, *, kept_out: str, ends: str) -> None:
    job = Job.of(bench.ops, bench.client, bench.provider)
    late = {"claim": 1, "settle": 2}[kept_out]
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        mining_by_hand(bench.anvil),
        bench.stage(proxy.url, coalesce_max=1) as on,
    ):
        marks = [op.calldata[:4] for op in job.ops[late:]]
        with proxy.fault(RefuseTransactions(lambda raw: any(mark in raw for mark in marks), "txpool is full")):
            await queue(on, job.ops)
            on.start(bench.relayer)
            await on.until(BROADCAST, late)
            await on.until("select count(*) = 3 from relays where state = 'signed'")
            await bench.anvil.call("evm_mine")
            await on.until("select count(*) = $1 from relays where state = 'mined'", late)
            if kept_out == "claim":
                await money_moves(bench.world, bench.client)
            else:
                await bench.anvil.call("evm_increaseTime", 400)
        await on.until(BROADCAST, 3)
        await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == ends
        assert await on.relay_violations() == []


@pytest.mark.parametrize("apart", [False, True], ids=["one transaction", "three nonces"])
async def test_reorg_of_a_chain_is_mined_again_in_order(bench: Bench, *, apart: bool) -> None:
    async with bench.stage(coalesce_max=1 if apart else 64) as on:
        async with mining_by_hand(bench.anvil):
            await queue(on, Job.of(bench.ops, bench.client, bench.provider).ops)
            on.start(bench.relayer)
            await on.until(BROADCAST, 3 if apart else 1)
            await bench.anvil.call("evm_mine")
            await on.until(ENDED)
            before = await on.fetchval("select max(block_hash) from relay_txs")
            await bench.anvil.call("anvil_reorg", 1, [])
            await on.until("select count(*) = 3 from relays where state = 'signed'")
            await until_pooled(bench.anvil)
            await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select bool_and(block_hash <> $1) from relay_txs", before)
        assert await on.fetchval("select count(*) from relay_tx_versions") == (3 if apart else 1)
        assert await on.relay_violations() == []


async def test_an_op_waits_for_one_that_another_account_has_signed(bench: Bench) -> None:
    job = Job.of(bench.ops, bench.client, bench.provider)
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        mining_by_hand(bench.anvil),
        bench.stage(proxy.url) as on,
    ):
        first = on.start(bench.relayer)
        await queue(on, [job.post])
        await on.until(BROADCAST, 1)
        first.cancel()
        on.start(signer(bench.world.wallets.with_role("relayer")[1]))
        await queue(on, [job.claim])
        looked = proxy.seen("eth_estimateGas")
        while proxy.seen("eth_estimateGas") < looked + 2:  # noqa: ASYNC110 - two rounds have looked at it
            await anyio.sleep(0.02)
        assert proxy.seen(SIMULATE) == 0
        assert await on.fetchval("select state::text from relays where kind = 'claim'") == "queued"
        on.start(bench.relayer)
        await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined"
        assert await on.relay_violations() == []


@pytest.mark.parametrize(
    "fault",
    [ErrorAnswer(SIMULATE, -32601, "the method eth_simulateV1 does not exist/is not available"), Hang(SIMULATE)],
    ids=["a node without it", "a node that does not answer it"],
)
async def test_without_call_simulation_each_op_waits_for_a_block(bench: Bench, *, fault: ErrorAnswer | Hang) -> None:
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        bench.stage(proxy.url, timeout_s=0.5) as on,
    ):
        with proxy.fault(fault):
            await queue(on, Job.of(bench.ops, bench.client, bench.provider).ops)
            on.start(bench.relayer)
            await on.until(ENDED)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 3
        assert proxy.seen(SIMULATE) == 1
        assert await on.relay_violations() == []


async def test_chain_survives_the_loss_of_its_first_nonce(bench: Bench) -> None:
    account = hexed(bench.relayer.address)
    async with mining_by_hand(bench.anvil), bench.stage(coalesce_max=1) as on:
        await queue(on, Job.of(bench.ops, bench.client, bench.provider).ops)
        on.start(bench.relayer)
        await on.until(BROADCAST, 3)
        first = await on.fetchval(
            "select hash from relay_tx_versions v join relay_txs t on t.id = tx_id order by nonce"
        )
        assert isinstance(first, bytes)
        await bench.anvil.call("anvil_dropTransaction", hexed(first))
        nonce = await bench.anvil.call("eth_getTransactionCount", account, "latest")
        await bench.anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": nonce})
        await bench.anvil.call("evm_mine")
        await on.until("select count(*) = 1 from relay_txs where lost")
        await mine_until_ended(on, bench.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select array_agg(requeued order by id) from relays") == [1, 1, 1]
        assert await on.relay_violations() == []


async def test_below_the_reserve_no_chain_is_started(bench: Bench) -> None:
    async with bench.stage() as on:
        await bench.anvil.call("anvil_setBalance", hexed(bench.relayer.address), hex(10**15))
        await queue(on, Job.of(bench.ops, bench.client, bench.provider).ops)
        on.start(bench.relayer)
        await on.until(ENDED)
        assert await on.fetchval(_ENDS) == (
            "post dropped relayer_funds, claim dropped relayer_funds, settle refused UnknownJob"
        )
        assert await on.fetchval("select count(*) from relay_txs") == 0
