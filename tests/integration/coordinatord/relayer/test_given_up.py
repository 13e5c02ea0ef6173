"""Transactions that no node accepts, and endpoints that accept nothing. Other ops do not wait, and callers wait only
briefly."""

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.relaying import NoReceipt, RelayMined
from coordinatord.storage.database.connections import Connection
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops
from tests.integration.coordinatord.relayer.running import Stage, mine_until_ended, relay_into, stage
from tests.support.faults.rpc_proxy import ErrorAnswer, Fault, HttpStatus, RefuseTransactions, SwallowAnswer, rpc_proxy
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio

LARGE = 3_000  # bytes: of six posts together, not of one
UNSEEN = "no wording that anybody has seen"
CAPPED = "transaction gas limit too high (cap: 1000000, tx: 1200000)"
OVERSIZED = "oversized data: transaction size 131700, limit 131072"
NOT_SERVED = "the method eth_sendRawTransaction does not exist/is not available"


async def queue_posts(on: Stage, ops: Ops, client: Wallet, count: int) -> None:
    async def body(connection: Connection) -> None:
        await outbox_sql.submit_all(connection, [ops.post(client) for _ in range(count)], max_depth=4096)

    await on.database.transact(body)


async def nothing_is_broken(on: Stage) -> None:
    async with on.database.connection() as connection:
        assert await relay_violations(connection, on.rpc, stuck_after=0) == []


@pytest.mark.parametrize("message", [CAPPED, OVERSIZED, UNSEEN])
async def test_rejected_bytes_yield_to_a_self_transfer(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, provider: Wallet, message: str
) -> None:
    outcomes: list[object] = []
    async with rpc_proxy(world.anvil.rpc_url) as proxy, stage(database_url, proxy.url, mined_within_s=1.0) as on:
        with proxy.fault(RefuseTransactions(lambda raw: len(raw) > LARGE, message)):
            await queue_posts(on, ops, client, 6)
            on.start(relayer_wallet)
            async with anyio.create_task_group() as callers:  # later ops, stuck until the nonce is closed
                for sent in (1, 3):
                    while proxy.seen("eth_sendRawTransaction") < sent:  # noqa: ASYNC110 - the event is in the proxy
                        await anyio.sleep(0.02)
                    callers.start_soon(relay_into(on, outcomes), ops.request_capacity(provider))
            await on.until("select bool_and(state = 'mined') from relays")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 2
        assert await on.fetchval("select array_agg(requeued order by id) from relays where kind = 'post'") == [1] * 6
        assert await on.fetchval("select count(*) from relay_tx_versions where fills") == 1
        await nothing_is_broken(on)


@pytest.mark.parametrize(
    "fault",
    [ErrorAnswer("eth_sendRawTransaction", -32601, NOT_SERVED), HttpStatus("eth_sendRawTransaction", 403)],
    ids=["method not found", "forbidden"],
)
async def test_endpoint_that_serves_no_sending_is_named_to_callers(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, fault: Fault
) -> None:
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, queue_timeout_ms=1500) as on,
    ):
        on.start(relayer_wallet)
        post = ops.post(client)
        with proxy.fault(fault):
            for op, code in ((post, "endpoint_refused"), (ops.post(client), "relay_queue_timeout")):
                with anyio.fail_after(60), pytest.raises(Retryable) as refused:
                    await on.relaying.relay(op)
                assert (refused.value.kind, refused.value.code) == ("relay_unavailable", code)
            assert await on.fetchval("select count(*) from relay_txs") == 1
        assert isinstance(await on.relaying.relay(post), RelayMined)  # joins the op that is already retried
        states = await on.fetchval("select array_agg(state::text order by id) from relays")
        assert states == ["mined", "dropped"]
        await nothing_is_broken(on)


async def test_unmined_bytes_yield_after_three_turns(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """A pool answers "known" forever, and offers none of the bytes to a block."""
    outcomes: list[object] = []
    async with (
        mining_by_hand(world.anvil),
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, mined_within_s=0.3) as on,
        anyio.create_task_group() as callers,
    ):
        with proxy.fault(RefuseTransactions(lambda raw: len(raw) > 200, "already known")):
            on.start(relayer_wallet)
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            while not await on.fetchval("select count(*) = 1 from relays where requeued = 1"):
                await world.anvil.call("evm_mine")
                await anyio.sleep(0.1)
        versions = (
            "select array_agg(fills order by v.created_at) from relay_tx_versions v join relay_txs t on t.id = v.tx_id"
        )
        assert await on.fetchval(f"{versions} where nonce = 0") == [False, False, False, True]
        await mine_until_ended(on, world.anvil)
        await nothing_is_broken(on)
    assert isinstance(outcomes[0], RelayMined)


async def test_possibly_sent_bytes_are_not_given_up(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with (
        mining_by_hand(world.anvil),
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, receipt_wait_s=3.0, timeout_s=0.5) as on,
        anyio.create_task_group() as callers,
    ):

        async def until_sent(times: int) -> None:
            while proxy.seen("eth_sendRawTransaction") < times:  # noqa: ASYNC110 - the event is in the proxy
                await anyio.sleep(0.02)

        with proxy.fault(SwallowAnswer("eth_sendRawTransaction")):
            on.start(relayer_wallet)
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await until_sent(1)
        with proxy.fault(ErrorAnswer("eth_sendRawTransaction", -32601, NOT_SERVED)):
            await until_sent(6)
            assert await on.fetchval("select state::text from relays") == "signed"
        await world.anvil.call("evm_mine")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select count(*) from relay_tx_versions") == 1
        await nothing_is_broken(on)
    assert isinstance(outcomes[0], RelayMined | NoReceipt)
