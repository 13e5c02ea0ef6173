"""Several ops of one job in one block: signed in sequence, and split if one of them is refused or lost."""

from collections.abc import Sequence

import anyio
import attrs
import pytest

from common.abi import boolean, encode, selector, uint
from common.secp256k1 import Wallet
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.op_gas import PlannedGas
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
from tests.integration.coordinatord.relayer.running import BROADCAST, Stage, mine_until_ended, relay_into, stage
from tests.support.faults.rpc_proxy import ErrorAnswer, Hang, RefuseTransactions, rpc_proxy
from tests.support.invariants.relays import relay_violations

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


async def nothing_wrong(on: Stage) -> None:
    async with on.database.connection() as connection:
        assert await relay_violations(connection, on.rpc, stuck_after=0) == []


async def provider_is_unlisted(world: World, provider: Wallet) -> None:
    operator = next(one for one in world.market.provider_ids if one.lower() == hexed(provider.address))
    call = selector("setListed(uint32,bool)") + encode(uint(world.market.provider_ids[operator]), boolean(False))
    await ahead_of_the_relayer(world.anvil, world.wallets.admin.address, world.market.providers, call)


async def test_post_claim_and_settle_share_one_transaction(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        async with anyio.create_task_group() as callers:
            for op in Job.of(ops, client, provider).ops:
                callers.start_soon(relay_into(on, outcomes), op)
            await on.until("select count(*) = 3 from relays")
            assert await on.fetchval("select array_agg(kind order by id) from relays") == ["post", "claim", "settle"]
            on.start(relayer_wallet)
            await until_pooled(world.anvil)
            await world.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select array_agg(call_index order by id) from relays") == [0, 1, 2]
        assert await on.fetchval("select count(*) from relay_txs") == 1
        # The claim takes its terms from the post before it.
        assert selector("claimPosted(bytes32,uint64,bytes)") in await on.fetchval("select calldata from relay_txs")
        await nothing_wrong(on)


async def test_op_after_a_broadcast_gets_the_next_nonce(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            for n, op in enumerate(Job.of(ops, client, provider).ops, 1):
                callers.start_soon(relay_into(on, outcomes), op)
                await on.until(BROADCAST, n)
            await world.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 3
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 1
        kinds = "select array_agg(kind order by nonce) from relays r join relay_txs t on t.id = r.tx_id"
        assert await on.fetchval(kinds) == ["post", "claim", "settle"]
        await nothing_wrong(on)


async def test_coalesce_limit_of_one_sends_single_ops(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, coalesce_max=1) as on:
        await queue(on, Job.of(ops, client, provider).ops)
        on.start(relayer_wallet)
        await on.until(BROADCAST, 3)
        await world.anvil.call("evm_mine")
        await on.until(ENDED)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 1


async def test_rival_claim_and_early_settle_delay_no_other_op(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    job = Job.of(ops, client, provider)
    rival = ops.claim(signer(world.wallets.with_role("provider")[1]), job.post.subject)
    rival = attrs.evolve(rival, dedupe=b"rival")
    early = Job.of(ops, client, provider)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        await queue(on, [job.post, job.claim, rival, job.settle, early.post, early.settle, early.claim])
        on.start(relayer_wallet)
        await until_pooled(world.anvil)
        await world.anvil.call("evm_mine")
        await on.until("select count(*) > 0 from relays where state = 'mined'")  # later ops wait for the next one
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == (
            "post mined, claim mined, claim refused NotOpen, settle mined, post mined, settle mined, claim mined"
        )
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 2
        await nothing_wrong(on)


async def test_independent_exits_precede_posts_with_chains(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    first = Job.of(ops, client, provider)
    async with stage(database_url, world.anvil.rpc_url) as on:
        relaying = on.start(relayer_wallet)
        await queue(on, [first.post, first.claim])
        await on.until(ENDED)
        relaying.cancel()
        await queue(on, [*Job.of(ops, client, provider).ops, first.settle])
        on.start(relayer_wallet)
        await on.until(ENDED)
        nonces = await on.fetchval(
            "select array_agg(distinct t.nonce) from relays r join relay_txs t on t.id = r.tx_id"
        )
        assert len(nonces) == 3
        of_settles = "select array_agg(t.nonce order by r.id) from relays r join relay_txs t on t.id = r.tx_id"
        assert await on.fetchval(of_settles + " where r.kind = 'settle'") == [max(nonces), max(nonces) - 1]


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (money_moves, "post refused InsufficientBalance, claim refused UnknownJob, settle refused UnknownJob"),
        (provider_is_unlisted, "post mined, claim refused NotListed, settle refused NotClaimed"),
    ],
    ids=["the payer moves its money", "the provider is taken off the list"],
)
async def test_op_after_a_refused_op_is_refused_for_its_own_reason(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    provider: Wallet,
    happens: object,
    ends: str,
) -> None:
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url) as on:
        await queue(on, Job.of(ops, client, provider).ops)
        on.start(relayer_wallet)
        await until_pooled(world.anvil)
        await (money_moves(world, client) if happens is money_moves else provider_is_unlisted(world, provider))
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == ends
        assert await on.fetchval("select count(*) from relay_txs") == 1
        await nothing_wrong(on)


@pytest.mark.parametrize(
    ("kept_out", "ends"),
    [
        ("claim", "post mined, claim refused PaymentRefused, settle refused NotClaimed"),
        ("settle", "post mined, claim mined, settle refused SlaExpired"),
    ],
)
async def test_later_transaction_of_a_chain_is_refused_alone(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    provider: Wallet,
    kept_out: str,
    ends: str,
) -> None:
    job = Job.of(ops, client, provider)
    late = {"claim": 1, "settle": 2}[kept_out]
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        mining_by_hand(world.anvil),
        stage(database_url, proxy.url, coalesce_max=1) as on,
    ):
        marks = [op.calldata[:4] for op in job.ops[late:]]
        with proxy.fault(RefuseTransactions(lambda raw: any(mark in raw for mark in marks), "txpool is full")):
            await queue(on, job.ops)
            on.start(relayer_wallet)
            await on.until(BROADCAST, late)
            await on.until("select count(*) = 3 from relays where state = 'signed'")
            await world.anvil.call("evm_mine")
            await on.until("select count(*) = $1 from relays where state = 'mined'", late)
            if kept_out == "claim":
                await money_moves(world, client)
            else:
                await world.anvil.call("evm_increaseTime", 400)
        await on.until(BROADCAST, 3)
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == ends
        await nothing_wrong(on)


async def test_starved_chain_is_split_and_resent_op_by_op(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    provider: Wallet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PlannedGas, "share", lambda *_: 0)
    async with stage(database_url, world.anvil.rpc_url) as on:
        jobs = [Job.of(ops, client, provider) for _ in range(3)]
        await queue(on, [op for job in jobs for op in job.ops])
        on.start(relayer_wallet)
        await on.until(ENDED)
        assert await on.fetchval("select count(*) from relays where state = 'mined' and requeued = 1") == 9
        assert await on.fetchval("select count(*) from relay_txs where not succeeded") == 1
        await nothing_wrong(on)


@pytest.mark.parametrize("apart", [False, True], ids=["one transaction", "three nonces"])
async def test_reorg_of_a_chain_is_mined_again_in_order(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet, apart: bool
) -> None:
    async with stage(database_url, world.anvil.rpc_url, coalesce_max=1 if apart else 64) as on:
        async with mining_by_hand(world.anvil):
            await queue(on, Job.of(ops, client, provider).ops)
            on.start(relayer_wallet)
            await on.until(BROADCAST, 3 if apart else 1)
            await world.anvil.call("evm_mine")
            await on.until(ENDED)
            before = await on.fetchval("select max(block_hash) from relay_txs")
            await world.anvil.call("anvil_reorg", 1, [])
            await on.until("select count(*) = 3 from relays where state = 'signed'")
            await until_pooled(world.anvil)
            await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select bool_and(block_hash <> $1) from relay_txs", before)
        assert await on.fetchval("select count(*) from relay_tx_versions") == (3 if apart else 1)
        await nothing_wrong(on)


async def test_an_op_waits_for_one_that_another_account_has_signed(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    job = Job.of(ops, client, provider)
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        mining_by_hand(world.anvil),
        stage(database_url, proxy.url) as on,
    ):
        first = on.start(relayer_wallet)
        await queue(on, [job.post])
        await on.until(BROADCAST, 1)
        first.cancel()
        on.start(signer(world.wallets.with_role("relayer")[1]))
        await queue(on, [job.claim])
        looked = proxy.seen("eth_estimateGas")
        while proxy.seen("eth_estimateGas") < looked + 2:  # noqa: ASYNC110 - two rounds have looked at it
            await anyio.sleep(0.02)
        assert proxy.seen(SIMULATE) == 0
        assert await on.fetchval("select state::text from relays where kind = 'claim'") == "queued"
        on.start(relayer_wallet)
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined"
        await nothing_wrong(on)


@pytest.mark.parametrize(
    "fault",
    [ErrorAnswer(SIMULATE, -32601, "the method eth_simulateV1 does not exist/is not available"), Hang(SIMULATE)],
    ids=["a node without it", "a node that does not answer it"],
)
async def test_without_call_simulation_each_op_waits_for_a_block(
    world: World,
    database_url: str,
    ops: Ops,
    relayer_wallet: Wallet,
    client: Wallet,
    *,
    provider: Wallet,
    fault: ErrorAnswer | Hang,
) -> None:
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, timeout_s=0.5) as on,
    ):
        with proxy.fault(fault):
            await queue(on, Job.of(ops, client, provider).ops)
            on.start(relayer_wallet)
            await on.until(ENDED)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select count(distinct block_number) from relay_txs") == 3
        assert proxy.seen(SIMULATE) == 1
        await nothing_wrong(on)


async def test_chain_survives_the_loss_of_its_first_nonce(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    account = hexed(relayer_wallet.address)
    async with mining_by_hand(world.anvil), stage(database_url, world.anvil.rpc_url, coalesce_max=1) as on:
        await queue(on, Job.of(ops, client, provider).ops)
        on.start(relayer_wallet)
        await on.until(BROADCAST, 3)
        first = await on.fetchval(
            "select hash from relay_tx_versions v join relay_txs t on t.id = tx_id order by nonce"
        )
        assert isinstance(first, bytes)
        await world.anvil.call("anvil_dropTransaction", hexed(first))
        nonce = await world.anvil.call("eth_getTransactionCount", account, "latest")
        await world.anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": nonce})
        await world.anvil.call("evm_mine")
        await on.until("select count(*) = 1 from relay_txs where lost")
        await mine_until_ended(on, world.anvil)
        assert await on.fetchval(_ENDS) == "post mined, claim mined, settle mined"
        assert await on.fetchval("select array_agg(requeued order by id) from relays") == [1, 1, 1]
        await nothing_wrong(on)


async def test_below_the_reserve_no_chain_is_started(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet
) -> None:
    async with stage(database_url, world.anvil.rpc_url) as on:
        await world.anvil.call("anvil_setBalance", hexed(relayer_wallet.address), hex(10**15))
        await queue(on, Job.of(ops, client, provider).ops)
        on.start(relayer_wallet)
        await on.until(ENDED)
        assert await on.fetchval(_ENDS) == (
            "post dropped relayer_funds, claim dropped relayer_funds, settle refused UnknownJob"
        )
        assert await on.fetchval("select count(*) from relay_txs") == 0
