"""Faults of the endpoint: no answers, errors, lies. Callers may retry before the broadcast. After it, only the stored
transaction is sent again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import NoReceipt, RelayMined
from coordinatord.chain.rpc.client import open_rpc
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import Ops, hexed
from tests.integration.coordinatord.relayer.running import Stage, relay_into, stage
from tests.support.faults.rpc_proxy import (
    ErrorAnswer,
    Fault,
    HttpStatus,
    Late,
    Rewrite,
    RpcProxy,
    SwallowAnswer,
    Truncate,
    older_head,
    rpc_proxy,
)
from tests.support.invariants.relays import relay_violations

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def behind_proxy(
    world: World, database_url: str, *, queue_timeout_ms: int = 30_000, receipt_wait_s: float = 60.0
) -> AsyncIterator[tuple[Stage, RpcProxy]]:
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(
            database_url, proxy.url, queue_timeout_ms=queue_timeout_ms, receipt_wait_s=receipt_wait_s, timeout_s=0.5
        ) as on,
    ):
        yield on, proxy


async def check_relays(world: World, on: Stage) -> None:
    """Compare the outbox with the chain, through a connection with a longer timeout than the relayer's."""
    async with open_rpc(world.anvil.rpc_url) as rpc, on.database.connection() as connection:
        assert await relay_violations(connection, rpc, stuck_after=0) == []


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ErrorAnswer("eth_estimateGas", -32603, "Internal error"), "rpc_internal"),
        (ErrorAnswer("eth_estimateGas", -32005, "limit exceeded"), "rate_limited"),
        (ErrorAnswer("eth_estimateGas", -32000, "too many requests"), "rate_limited"),
        (ErrorAnswer("eth_estimateGas", -32601, "method not found"), "endpoint_refused"),
        (HttpStatus("eth_estimateGas", 429), "rate_limited"),
        (HttpStatus("eth_estimateGas", 403), "endpoint_refused"),
    ],
)
async def test_trouble_in_simulation_drops_the_relay_with_its_code(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, provider: Wallet, *, fault: Fault, code: str
) -> None:
    async with behind_proxy(world, database_url) as (on, proxy):
        on.start(relayer_wallet)
        with proxy.fault(fault), pytest.raises(Retryable) as dropped:
            await on.relaying.relay(ops.request_capacity(provider))
        assert (dropped.value.kind, dropped.value.code) == ("relay_unavailable", code)
        assert await on.fetchval("select count(*) from relay_txs") == 0


@pytest.mark.parametrize("method", ["eth_call", "eth_getBlockByNumber"])
async def test_silent_endpoint_leaves_relays_queued(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, method: str
) -> None:
    async with behind_proxy(world, database_url, queue_timeout_ms=1000) as (on, proxy):
        with proxy.fault(HttpStatus(method, 503)):
            on.start(relayer_wallet)
            with pytest.raises(Retryable) as dropped:
                await on.relaying.relay(ops.post(client))
        assert dropped.value.code == "relay_queue_timeout"
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)


@pytest.mark.parametrize(
    "fault",
    [
        SwallowAnswer("eth_sendRawTransaction"),
        Truncate("eth_sendRawTransaction"),
        HttpStatus("eth_sendRawTransaction", 502),
        ErrorAnswer("eth_sendRawTransaction", -32603, "Internal error"),
        ErrorAnswer("eth_sendRawTransaction", -32603, "nonce too low"),
        ErrorAnswer("eth_sendRawTransaction", -32000, "already known"),
    ],
)
async def test_unclear_broadcast_never_uses_a_second_nonce(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, fault: Fault
) -> None:
    outcomes: list[object] = []
    async with behind_proxy(world, database_url) as (on, proxy):
        on.start(relayer_wallet)

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        async with anyio.create_task_group() as callers:
            with proxy.fault(fault):
                callers.start_soon(relay)
                await on.until("select count(*) = 1 from relays where state <> 'queued'")
                while not proxy.seen("eth_sendRawTransaction"):  # noqa: ASYNC110 - the proxy counts, it does not tell
                    await anyio.sleep(0.02)
        assert isinstance(outcomes[0], RelayMined)
        assert await on.fetchval("select count(*) from relay_txs") == 1
        assert await on.fetchval("select count(*) from relay_tx_versions") == 1
        await check_relays(world, on)


async def test_caller_without_receipt_gets_the_hash(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    post = ops.post(client)
    async with mining_by_hand(world.anvil), behind_proxy(world, database_url, receipt_wait_s=0.5) as (on, _):
        on.start(relayer_wallet)
        outcome = await on.relaying.relay(post)
        assert isinstance(outcome, NoReceipt)
        assert await on.relaying.relay(post) == outcome  # the same submission joins the same transaction
        await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await world.anvil.call("evm_mine")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select mined_hash from relay_txs") == outcome.tx_hash


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (HttpStatus("eth_sendRawTransaction", 429), "rate_limited"),
        (ErrorAnswer("eth_sendRawTransaction", -32005, "limit exceeded"), "rate_limited"),
        (ErrorAnswer("eth_sendRawTransaction", -32603, "Internal error"), "rpc_internal"),
        (ErrorAnswer("eth_sendRawTransaction", -32000, "txpool is full"), "rpc_internal"),
    ],
)
async def test_a_refused_broadcast_is_a_503_and_can_be_joined(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, fault: Fault, code: str
) -> None:
    post = ops.post(client)
    async with behind_proxy(world, database_url, queue_timeout_ms=1500) as (on, proxy):
        on.start(relayer_wallet)
        with proxy.fault(fault), pytest.raises(Retryable) as refused:
            await on.relaying.relay(post)
        assert (refused.value.kind, refused.value.code) == ("relay_unavailable", code)
        outcome = None
        while outcome is None:
            with suppress(Retryable):  # the relayer backs off, and this client repeats its request
                outcome = await on.relaying.relay(post)
        assert isinstance(outcome, RelayMined)
        assert await on.fetchval("select count(*) from relays") == 1
        assert await on.fetchval("select refusal from relay_txs") is None


async def test_a_broadcast_without_an_answer_is_a_504(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """A later refusal proves nothing, because a node may have the bytes of the first broadcast."""
    async with behind_proxy(world, database_url, queue_timeout_ms=1500, receipt_wait_s=1.5) as (on, proxy):
        on.start(relayer_wallet)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 502)), anyio.move_on_after(1):
            await on.relaying.relay(post := ops.post(client))
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 429)):
            assert isinstance(await on.relaying.relay(post), NoReceipt)


async def test_a_node_slow_to_accept_bytes_lets_no_more_in(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    late = Late("eth_sendRawTransaction")
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, max_depth=2, queue_timeout_ms=1500) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(relayer_wallet)
        with proxy.fault(late):
            callers.start_soon(relay_into(on, outcomes), ops.post(client))
            while not proxy.seen("eth_sendRawTransaction"):  # noqa: ASYNC110 - the proxy counts, it does not tell
                await anyio.sleep(0.02)
            refused = await refusals(on, [ops.post(client) for _ in range(5)])
            late.until.set()
        assert sorted(refused) == ["relay_queue_full"] * 3 + ["relay_queue_timeout"] * 2
        await on.until("select count(*) = 1 from relays where state = 'mined'")
        assert await on.fetchval("select count(*) from relay_txs") == 1
    assert isinstance(outcomes[0], RelayMined)


async def test_a_simulation_that_answers_too_late_signs_nothing(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    late = Late("eth_call")
    async with (
        rpc_proxy(world.anvil.rpc_url) as proxy,
        stage(database_url, proxy.url, queue_timeout_ms=600) as on,
    ):
        on.start(relayer_wallet)
        with proxy.fault(late):
            with anyio.fail_after(3):  # the node's timeout is 5
                assert await refusals(on, [ops.post(client)]) == ["relay_queue_timeout"]
            late.until.set()
        await on.until("select state = 'dropped' from relays")
        assert await on.fetchval("select count(*) from relay_txs") == 0


async def refusals(on: Stage, posts: Sequence[NewRelay]) -> list[str | None]:
    """Return the codes by which these concurrent posts are refused."""
    codes: list[str | None] = []

    async def relay(post: NewRelay) -> None:
        with pytest.raises(Retryable) as refused:
            await on.relaying.relay(post)
        codes.append(refused.value.code)

    async with anyio.create_task_group() as callers:
        for post in posts:
            callers.start_soon(relay, post)
    return codes


async def test_requeued_relay_returns_the_broadcast_hash_on_timeout(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    """An outside transaction took the nonce, and no node can simulate the op now."""
    post, account = ops.post(client), hexed(relayer_wallet.address)
    outcomes: list[object] = []
    async with mining_by_hand(world.anvil), behind_proxy(world, database_url, receipt_wait_s=3) as (on, proxy):
        relaying = on.start(relayer_wallet)

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(post))

        async with anyio.create_task_group() as callers:
            callers.start_soon(relay)
            await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
            sent = await on.fetchval("select hash from relay_tx_versions")
            await world.anvil.call("anvil_dropAllTransactions")
            await world.anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": "0x0"})
            with proxy.fault(HttpStatus("eth_call", 503), HttpStatus("eth_estimateGas", 503)):
                await world.anvil.call("evm_mine")
                await on.until("select state = 'queued' and requeued = 1 from relays")
                while not outcomes:  # noqa: ASYNC110 - the caller's wait
                    await anyio.sleep(0.05)
        assert outcomes == [NoReceipt(sent)]
        relaying.cancel()


@pytest.mark.parametrize(
    "faults",
    [
        older_head(3),
        (Truncate("eth_getBlockByNumber"),),
        (Rewrite("eth_getTransactionReceipt", lambda _params, _receipt: None),),
    ],
    ids=["head goes back", "truncated", "receipts withheld"],
)
async def test_lies_about_the_chain_end_no_relay_wrongly(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet, *, faults: tuple[Fault, ...]
) -> None:
    outcomes: list[object] = []
    async with behind_proxy(world, database_url) as (on, proxy):
        on.start(relayer_wallet)
        assert isinstance(await on.relaying.relay(ops.post(client)), RelayMined)

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        async with anyio.create_task_group() as callers:
            with proxy.fault(*faults):
                callers.start_soon(relay)
                with anyio.move_on_after(1.5):
                    await on.until("select count(*) = 2 from relays where state = 'mined'")
        assert isinstance(outcomes[0], RelayMined)
        await check_relays(world, on)


async def test_overcounting_node_costs_only_self_transfers(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with behind_proxy(world, database_url) as (on, proxy), anyio.create_task_group() as callers:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))
            callers.cancel_scope.cancel()

        with proxy.fault(Rewrite("eth_getTransactionCount", lambda _params, count: hex(int(count, 16) + 3))):
            on.start(relayer_wallet)
            callers.start_soon(relay)
            await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await on.until("select count(*) = 4 from relay_txs where block_number is not null")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select count(*) from relay_txs where purpose = 'fill'") == 3
        await check_relays(world, on)


async def test_undeliverable_bytes_yield_and_the_relay_is_resent(
    world: World, database_url: str, ops: Ops, relayer_wallet: Wallet, client: Wallet
) -> None:
    outcomes: list[object] = []
    async with behind_proxy(world, database_url) as (on, proxy), anyio.create_task_group() as callers:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(ops.post(client)))

        with proxy.fault(ErrorAnswer("eth_sendRawTransaction", -32000, "exceeds block gas limit")):
            on.start(relayer_wallet)
            callers.start_soon(relay)
            await on.until("select count(*) = 1 from relay_tx_versions where fills")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select requeued from relays") == 1
        await check_relays(world, on)
