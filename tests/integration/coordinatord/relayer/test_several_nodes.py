"""A relayer with several nodes, one of which dies, lags or lies. Every op is mined once, in one transaction."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.chain.rpc.pinned import PinnedRpc
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops
from tests.integration.coordinatord.relayer.running import BROADCAST, Stage, relay_into, stage
from tests.support.faults.rpc_proxy import (
    ANY,
    ErrorAnswer,
    Fault,
    HttpStatus,
    Rewrite,
    RpcProxy,
    SwallowAnswer,
    rpc_proxy,
)
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def behind_proxies(
    world: World, database_url: str, count: int, timeout_s: float = 10.0
) -> AsyncIterator[tuple[Stage, list[RpcProxy]]]:
    """`timeout_s` is the timeout of a node. Short for nodes that do not answer."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(rpc_proxy(world.anvil.rpc_url)) for _ in range(count)]
        urls = [proxy.url for proxy in proxies]
        yield await stack.enter_async_context(stage(database_url, urls, timeout_s=timeout_s)), proxies


async def mined_once(on: Stage, world: World, outcomes: Sequence[object], relays: int = 1) -> None:
    assert [type(outcome) for outcome in outcomes] == [RelayMined] * relays
    assert await on.fetchval("select count(*) from relay_txs") == relays
    assert await on.fetchval("select count(*) from relays where state = 'mined'") == relays
    async with on.database.connection() as connection, open_rpc(world.anvil.rpc_url) as rpc:
        assert await relay_violations(connection, rpc, stuck_after=0) == []


def failed(_params: Any, receipt: Any) -> Any:
    return receipt and {**receipt, "status": "0x0", "logs": []}


def later(params: Any, block: Any) -> Any:
    return {**block, "number": hex(max(0, int(block["number"], 16) - 20))} if params[0] == "latest" else block


LIES: list[tuple[Fault, ...]] = [
    (Rewrite("eth_getTransactionReceipt", failed),),
    (Rewrite("eth_getTransactionReceipt", lambda _params, _receipt: None),),
    (Rewrite("eth_getBlockByNumber", lambda _params, block: {**block, "transactions": []}),),
]
NAMES = ["reverted", "no receipt", "transactions withheld"]


async def test_relay_is_mined_by_the_other_node(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with behind_proxies(world, database_url, 2) as (on, (first, second)), mining_by_hand(world.anvil):
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            with first.fault(HttpStatus(ANY, 503)):
                await world.anvil.call("evm_mine")
                await on.until("select count(*) = 1 from relays where state = 'mined'")
        assert isinstance(on.rpc, PinnedRpc)
        assert on.rpc.node.name == second.url.removeprefix("http://")
        await mined_once(on, world, outcomes)


@pytest.mark.parametrize(
    "fault",
    [
        ErrorAnswer("eth_sendRawTransaction", -32000, "already known"),
        ErrorAnswer("eth_sendRawTransaction", -32000, "exceeds block gas limit"),
        ErrorAnswer("eth_sendRawTransaction", -32601, "method not found"),
        HttpStatus("eth_sendRawTransaction", 403),
        SwallowAnswer("eth_sendRawTransaction"),
    ],
    ids=["takes and drops", "refuses", "does not serve", "forbids", "loses the answer"],
)
async def test_bytes_are_sent_to_every_node(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, fault: Fault
) -> None:
    outcomes: list[object] = []
    timeout_s = 0.5 if isinstance(fault, SwallowAnswer) else 10.0
    async with behind_proxies(world, database_url, 2, timeout_s) as (on, (first, second)):
        on.start(relayer_wallet)
        with first.fault(fault), anyio.fail_after(60):
            await relay_into(on, outcomes)(ops.post(client))
        assert second.seen("eth_sendRawTransaction") >= 1
        assert await on.fetchval("select count(*) from relay_tx_versions") == 1
        await mined_once(on, world, outcomes)


@pytest.mark.parametrize("lie", LIES, ids=NAMES)
async def test_lying_receipt_ends_no_relay_until_nodes_agree(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, lie: tuple[Fault, ...]
) -> None:
    outcomes: list[object] = []
    async with behind_proxies(world, database_url, 2) as (on, (first, _)):
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            with first.fault(*lie):
                callers.start_soon(relay_into(on, outcomes), ops.post(client))
                await on.until(BROADCAST, 1)
                with anyio.move_on_after(4):
                    await on.until("select count(*) = 1 from relays where state <> 'signed'")
                states = await on.fetchval("select array_agg(state) from relays")
                assert states in (["signed"], ["mined"])  # mined only if both nodes agree
                if lie is LIES[0]:
                    assert states == ["signed"]
                    assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "receipts"}) == 0
        await mined_once(on, world, outcomes)
        assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "receipts"}) == 2


@pytest.mark.parametrize("lie", LIES, ids=NAMES)
async def test_of_three_nodes_a_liar_is_left_for_two_that_agree(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, lie: tuple[Fault, ...]
) -> None:
    outcomes: list[object] = []
    async with behind_proxies(world, database_url, 3) as (on, (first, *_)):
        on.start(relayer_wallet)
        with first.fault(*lie), anyio.fail_after(60):
            await relay_into(on, outcomes)(ops.post(client))
        await mined_once(on, world, outcomes)


async def test_lagging_node_is_left_before_decisions(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    lag = (
        Rewrite("eth_blockNumber", lambda _params, number: hex(max(0, int(number, 16) - 20))),
        Rewrite("eth_getBlockByNumber", later),
    )
    async with behind_proxies(world, database_url, 2) as (on, (first, _)):
        with first.fault(*lag), anyio.fail_after(60):
            on.start(relayer_wallet)
            await relay_into(on, outcomes)(ops.post(client))
        await mined_once(on, world, outcomes)


async def test_nonce_free_at_another_node_is_not_given_up(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """If the relayer believed the lying node that the nonce is used, it would send the op a second time."""
    outcomes: list[object] = []
    count = Rewrite("eth_getTransactionCount", lambda _params, count: hex(int(count, 16) + 1))
    async with behind_proxies(world, database_url, 2) as (on, (first, _)), mining_by_hand(world.anvil):
        on.start(relayer_wallet)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            await on.until(BROADCAST, 1)
            with first.fault(count):
                for _ in range(6):  # the relayer reads its nonces again every second, also without a new block
                    await anyio.sleep(0.5)
                    assert await on.fetchval("select count(*) from relay_txs where lost") == 0
                    assert await on.fetchval("select count(*) from relay_txs where purpose = 'relay'") == 1
            await world.anvil.call("evm_mine")
        assert await on.fetchval("select requeued from relays") == 0
        assert [type(outcome) for outcome in outcomes] == [RelayMined]
