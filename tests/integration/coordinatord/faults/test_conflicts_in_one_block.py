"""Two conflicting ops in one block, sent through the relayer: exactly one wins."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from common.messages.jobs import Cancel, Settle
from common.secp256k1 import Wallet
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import RefusedByChain, RelayMined
from devnet.accounts import DevWallets
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import CID, Ops, hexed, raw, signer
from tests.integration.coordinatord.relayer.running import Stage, stage

pytestmark = pytest.mark.anyio

SLA = 60
OPEN, CLAIMED, SETTLED, CANCELLED = range(4)


@pytest.fixture
def ops(world: World) -> Ops:
    return Ops.of(world.market)


@pytest.fixture
def owner(wallets: DevWallets) -> Wallet:
    return signer(wallets.with_role("client")[0])


@pytest.fixture
def provider(wallets: DevWallets) -> Wallet:
    return signer(wallets.with_role("provider")[0])


@pytest.fixture
async def on(world: World, database_url: str, ops: Ops, wallets: DevWallets) -> AsyncIterator[Stage]:
    """Send each op in a separate transaction. In a shared one, the simulation would reject the second op before the
    block."""
    async with stage(database_url, world.anvil.rpc_url, coalesce_max=1, index=ops.book) as running:
        running.start(signer(wallets.with_role("relayer")[0]))
        yield running


def settle(ops: Ops, provider: Wallet, job: bytes) -> NewRelay:
    message = Settle(job, 10, int(time.time()))
    signature = provider.sign(ops.domains.jobs.digest(message))
    calldata = job_registry.settle_calldata(ops.posted[job].posted, 10, message.issued_at, CID, signature)
    return NewRelay(RelayKind.SETTLE, job, b"settle" + job, raw(ops.market.jobs), calldata, Priority.EXIT)


def cancel(ops: Ops, owner: Wallet, job: bytes) -> NewRelay:
    message = Cancel(job, int(time.time()))
    signature = owner.sign(ops.domains.jobs.digest(message))
    calldata = job_registry.cancel_calldata(ops.posted[job].posted, message.issued_at, signature)
    return NewRelay(RelayKind.CANCEL, job, b"cancel" + job, raw(ops.market.jobs), calldata, Priority.EXIT)


@asynccontextmanager
async def relayed_into_one_block(on: Stage, world: World, *relays: NewRelay) -> AsyncIterator[dict[bytes, object]]:
    """Sign in this order, with all in the pool inside the block. Mine when it ends. Yields outcomes by dedupe key."""
    outcomes: dict[bytes, object] = {}

    async def run(relay: NewRelay) -> None:
        outcomes[relay.dedupe] = await on.relaying.relay(relay)

    before = await on.fetchval("select coalesce(max(id), 0) from relay_txs")
    async with mining_by_hand(world.anvil), anyio.create_task_group() as callers:
        for count, relay in enumerate(relays, 1):
            callers.start_soon(run, relay)
            broadcast = "select count(*) = $2 from relay_txs where id > $1 and broadcast_at is not null"
            await on.until(broadcast, before, count)
        yield outcomes
        await world.anvil.call("evm_mine")
    assert await on.fetchval("select count(distinct block_number) from relay_txs where id > $1", before) == 1


async def posted(on: Stage, ops: Ops, owner: Wallet) -> bytes:
    post = ops.post(owner, sla=SLA)
    assert isinstance(await on.relaying.relay(post), RelayMined)
    return post.subject


async def job_state(on: Stage, job: bytes) -> object:
    return await on.fetchval("select state from jobs where job_id = $1", job)


@pytest.mark.parametrize("claim_first", [True, False])
async def test_claim_and_cancel_in_one_block_end_with_the_first(
    *, on: Stage, world: World, database_url: str, ops: Ops, owner: Wallet, provider: Wallet, claim_first: bool
) -> None:
    job = await posted(on, ops, owner)
    both = [ops.claim(provider, job), cancel(ops, owner, job)]
    first, second = both if claim_first else reversed(both)
    async with relayed_into_one_block(on, world, first, second) as outcomes:
        pass
    assert isinstance(outcomes[first.dedupe], RelayMined)
    refused = outcomes[second.dedupe]
    assert isinstance(refused, RefusedByChain)
    assert refused.name == ("NotCancellable" if claim_first else "NotOpen")
    assert await job_state(on, job) == (CLAIMED if claim_first else CANCELLED)
    assert await all_violations(database_url, world.anvil.rpc_url, ops.book) == []


@pytest.mark.parametrize("late", [0, 1], ids=["in the last second", "a second too late"])
async def test_settle_and_reclaim_in_one_block_end_the_job_once(
    *, on: Stage, world: World, database_url: str, ops: Ops, owner: Wallet, provider: Wallet, late: int
) -> None:
    job = await posted(on, ops, owner)
    assert isinstance(await on.relaying.relay(ops.claim(provider, job)), RelayMined)
    claimed_at = await on.fetchval("select claimed_at from jobs where job_id = $1", job)
    assert isinstance(claimed_at, int)
    op = settle(ops, provider, job)
    async with relayed_into_one_block(on, world, op) as outcomes:
        reclaim = {
            "from": hexed(owner.address),  # any account may
            "to": world.market.jobs,
            "data": hexed(job_registry.reclaim_calldata(ops.posted[job].posted)),
            "gas": hex(1_000_000),
        }
        sent = await world.anvil.call("eth_sendTransaction", reclaim)
        await world.anvil.call("evm_setNextBlockTimestamp", claimed_at + SLA + late)
    receipt = await world.anvil.call("eth_getTransactionReceipt", sent)
    assert int(receipt["blockNumber"], 16) == await on.fetchval("select max(block_number) from relay_txs")
    assert int(receipt["status"], 16) == late
    if late:
        refused = outcomes[op.dedupe]
        assert isinstance(refused, RefusedByChain)
        assert refused.name in ("SlaExpired", "NotClaimed")  # depends on their order
    else:
        assert isinstance(outcomes[op.dedupe], RelayMined)
    assert await all_violations(database_url, world.anvil.rpc_url, ops.book) == []
    assert await job_state(on, job) == (CANCELLED if late else SETTLED)
