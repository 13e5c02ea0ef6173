"""Faults of the endpoint: no answers, errors, lies. Callers may retry before the broadcast. After it, only the stored
transaction is sent again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import NoReceipt, RelayMined
from coordinatord.chain.rpc.client import open_rpc
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.ops import hexed
from tests.integration.coordinatord.relayer.running import Bench, Stage, relay_into, stage
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


async def test_trouble_in_simulation_drops_the_relay_with_its_code(bench: Bench) -> None:
    async with behind_proxy(bench.world, bench.database_url) as (on, proxy):
        on.start(bench.relayer)
        for fault, code in (
            (ErrorAnswer("eth_estimateGas", -32603, "Internal error"), "rpc_internal"),
            (ErrorAnswer("eth_estimateGas", -32005, "limit exceeded"), "rate_limited"),
            (HttpStatus("eth_estimateGas", 403), "endpoint_refused"),
        ):
            with proxy.fault(fault), pytest.raises(Retryable) as dropped:
                await on.relaying.relay(bench.request_capacity())
            assert (dropped.value.kind, dropped.value.code) == ("relay_unavailable", code)
        assert await on.fetchval("select count(*) from relay_txs") == 0


@pytest.mark.parametrize("method", ["eth_call", "eth_getBlockByNumber"])
async def test_silent_endpoint_leaves_relays_queued(bench: Bench, method: str) -> None:
    async with behind_proxy(bench.world, bench.database_url, queue_timeout_ms=1000) as (on, proxy):
        with proxy.fault(HttpStatus(method, 503)):
            on.start(bench.relayer)
            with pytest.raises(Retryable) as dropped:
                await on.relaying.relay(bench.post())
        assert dropped.value.code == "relay_queue_timeout"
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)


async def test_unclear_broadcast_never_uses_a_second_nonce(bench: Bench) -> None:
    outcomes: list[object] = []
    faults: list[Fault] = [
        SwallowAnswer("eth_sendRawTransaction"),
        Truncate("eth_sendRawTransaction"),
        HttpStatus("eth_sendRawTransaction", 502),
        ErrorAnswer("eth_sendRawTransaction", -32603, "Internal error"),
        ErrorAnswer("eth_sendRawTransaction", -32603, "nonce too low"),
    ]
    async with behind_proxy(bench.world, bench.database_url) as (on, proxy):
        on.start(bench.relayer)
        for count, fault in enumerate(faults, 1):
            async with anyio.create_task_group() as callers:
                before = proxy.seen("eth_sendRawTransaction")
                with proxy.fault(fault):
                    callers.start_soon(relay_into(on, outcomes), bench.post())
                    while proxy.seen("eth_sendRawTransaction") == before:  # noqa: ASYNC110 - the proxy counts, it does not tell
                        await anyio.sleep(0.02)
            assert [type(outcome) for outcome in outcomes] == [RelayMined] * count
            assert await on.fetchval("select count(*) from relay_txs") == count
            assert await on.fetchval("select count(*) from relay_tx_versions") == count
        await check_relays(bench.world, on)


async def test_caller_without_receipt_gets_the_hash(bench: Bench) -> None:
    post = bench.post()
    async with (
        mining_by_hand(bench.anvil),
        behind_proxy(bench.world, bench.database_url, receipt_wait_s=0.5) as (on, _),
    ):
        on.start(bench.relayer)
        outcome = await on.relaying.relay(post)
        assert isinstance(outcome, NoReceipt)
        assert await on.relaying.relay(post) == outcome  # the same submission joins the same transaction
        await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await bench.anvil.call("evm_mine")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select mined_hash from relay_txs") == outcome.tx_hash


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (HttpStatus("eth_sendRawTransaction", 429), "rate_limited"),
        (ErrorAnswer("eth_sendRawTransaction", -32000, "txpool is full"), "rpc_internal"),
    ],
)
async def test_a_refused_broadcast_is_a_503_and_can_be_joined(bench: Bench, *, fault: Fault, code: str) -> None:
    post = bench.post()
    async with behind_proxy(bench.world, bench.database_url, queue_timeout_ms=1500) as (on, proxy):
        on.start(bench.relayer)
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


async def test_a_broadcast_without_an_answer_is_a_504(bench: Bench) -> None:
    """A later refusal proves nothing, because a node may have the bytes of the first broadcast."""
    async with behind_proxy(bench.world, bench.database_url, queue_timeout_ms=1500, receipt_wait_s=1.5) as (on, proxy):
        on.start(bench.relayer)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 502)), anyio.move_on_after(1):
            await on.relaying.relay(post := bench.post())
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 429)):
            assert isinstance(await on.relaying.relay(post), NoReceipt)


async def test_a_node_slow_to_accept_bytes_lets_no_more_in(bench: Bench) -> None:
    outcomes: list[object] = []
    late = Late("eth_sendRawTransaction")
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        bench.stage(proxy.url, max_depth=2, queue_timeout_ms=1500) as on,
        anyio.create_task_group() as callers,
    ):
        on.start(bench.relayer)
        with proxy.fault(late):
            callers.start_soon(relay_into(on, outcomes), bench.post())
            while not proxy.seen("eth_sendRawTransaction"):  # noqa: ASYNC110 - the proxy counts, it does not tell
                await anyio.sleep(0.02)
            refused = await refusals(on, [bench.post() for _ in range(5)])
            late.until.set()
        assert sorted(refused) == ["relay_queue_full"] * 3 + ["relay_queue_timeout"] * 2
        await on.until("select count(*) = 1 from relays where state = 'mined'")
        assert await on.fetchval("select count(*) from relay_txs") == 1
    assert isinstance(outcomes[0], RelayMined)


async def test_a_simulation_that_answers_too_late_signs_nothing(bench: Bench) -> None:
    late = Late("eth_call")
    async with (
        rpc_proxy(bench.anvil.rpc_url) as proxy,
        bench.stage(proxy.url, queue_timeout_ms=600) as on,
    ):
        on.start(bench.relayer)
        with proxy.fault(late):
            with anyio.fail_after(3):  # the node's timeout is 5
                assert await refusals(on, [bench.post()]) == ["relay_queue_timeout"]
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


async def test_requeued_relay_returns_the_broadcast_hash_on_timeout(bench: Bench) -> None:
    """An outside transaction took the nonce, and no node can simulate the op now."""
    post, account = bench.post(), hexed(bench.relayer.address)
    outcomes: list[object] = []
    async with (
        mining_by_hand(bench.anvil),
        behind_proxy(bench.world, bench.database_url, receipt_wait_s=3) as (on, proxy),
    ):
        relaying = on.start(bench.relayer)

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(post))

        async with anyio.create_task_group() as callers:
            callers.start_soon(relay)
            await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
            sent = await on.fetchval("select hash from relay_tx_versions")
            await bench.anvil.call("anvil_dropAllTransactions")
            await bench.anvil.call("eth_sendTransaction", {"from": account, "to": account, "nonce": "0x0"})
            with proxy.fault(HttpStatus("eth_call", 503), HttpStatus("eth_estimateGas", 503)):
                await bench.anvil.call("evm_mine")
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
async def test_lies_about_the_chain_end_no_relay_wrongly(bench: Bench, *, faults: tuple[Fault, ...]) -> None:
    outcomes: list[object] = []
    async with behind_proxy(bench.world, bench.database_url) as (on, proxy):
        on.start(bench.relayer)
        assert isinstance(await on.relaying.relay(bench.post()), RelayMined)

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(bench.post()))

        async with anyio.create_task_group() as callers:
            with proxy.fault(*faults):
                callers.start_soon(relay)
                with anyio.move_on_after(1.5):
                    await on.until("select count(*) = 2 from relays where state = 'mined'")
        assert isinstance(outcomes[0], RelayMined)
        await check_relays(bench.world, on)


async def test_overcounting_node_costs_only_self_transfers(bench: Bench) -> None:
    outcomes: list[object] = []
    async with behind_proxy(bench.world, bench.database_url) as (on, proxy), anyio.create_task_group() as callers:

        async def relay() -> None:
            outcomes.append(await on.relaying.relay(bench.post()))
            callers.cancel_scope.cancel()

        with proxy.fault(Rewrite("eth_getTransactionCount", lambda _params, count: hex(int(count, 16) + 3))):
            on.start(bench.relayer)
            callers.start_soon(relay)
            await on.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await on.until("select count(*) = 4 from relay_txs where block_number is not null")
        await on.until("select state = 'mined' from relays")
        assert await on.fetchval("select count(*) from relay_txs where purpose = 'fill'") == 3
        await check_relays(bench.world, on)
