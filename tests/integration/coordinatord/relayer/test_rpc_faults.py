"""Endpoints that do not answer, refuse or lie, and transactions that no node accepts. Callers may retry before the
broadcast. After it, only the stored transaction is sent again. With several nodes, every op is mined once."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import NoReceipt, RelayMined
from coordinatord.chain.rpc.pinned import PinnedRpc
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, Stage, relay_into
from tests.support.faults.rpc_proxy import (
    ANY,
    ErrorAnswer,
    Fault,
    HttpStatus,
    Late,
    RefuseTransactions,
    Rewrite,
    RpcProxy,
    SwallowAnswer,
    Truncate,
    older_head,
    rpc_proxy,
)


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
async def test_trouble_in_simulation_drops_the_relay_with_its_code(scene: Scene, fault: Fault, code: str) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5) as (stage, proxy):
        stage.start(scene.relayer)
        with proxy.fault(fault), pytest.raises(Retryable) as dropped:
            await stage.relaying.relay(scene.request_capacity())
        assert (dropped.value.kind, dropped.value.code) == ("relay_unavailable", code)
        assert await stage.fetchval("select count(*) from relay_txs") == 0


@pytest.mark.parametrize("method", ["eth_call", "eth_getBlockByNumber"])
async def test_silent_endpoint_leaves_relays_queued(scene: Scene, method: str) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5, queue_timeout_ms=1000) as (stage, proxy):
        with proxy.fault(HttpStatus(method, 503)):
            stage.start(scene.relayer)
            with pytest.raises(Retryable) as dropped:
                await stage.relaying.relay(scene.post())
        assert dropped.value.code == "relay_queue_timeout"
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)


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
async def test_unclear_broadcast_never_uses_a_second_nonce(scene: Scene, fault: Fault) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5) as (stage, proxy):
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            with proxy.fault(fault):
                await stage.until("select count(*) = 1 from relays where state <> 'queued'")
                while not proxy.seen("eth_sendRawTransaction"):  # noqa: ASYNC110 - the proxy counts, it does not tell
                    await anyio.sleep(0.02)
        assert await stage.fetchval("select count(*) from relay_txs") == 1
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 1
        await scene.check(stage)


async def test_caller_without_receipt_gets_the_hash(scene: Scene) -> None:
    post = scene.post()
    async with mining_by_hand(scene.anvil), scene.stage_behind_proxy(timeout_s=0.5, receipt_wait_s=0.5) as (stage, _):
        stage.start(scene.relayer)
        outcome = await stage.relaying.relay(post)
        assert isinstance(outcome, NoReceipt)
        assert await stage.relaying.relay(post) == outcome  # the same submission joins the same transaction
        await stage.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await scene.anvil.call("evm_mine")
        await stage.until("select state = 'mined' from relays")
        assert await stage.fetchval("select mined_hash from relay_txs") == outcome.tx_hash


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (HttpStatus("eth_sendRawTransaction", 429), "rate_limited"),
        (ErrorAnswer("eth_sendRawTransaction", -32005, "limit exceeded"), "rate_limited"),
        (ErrorAnswer("eth_sendRawTransaction", -32603, "Internal error"), "rpc_internal"),
        (ErrorAnswer("eth_sendRawTransaction", -32000, "txpool is full"), "rpc_internal"),
    ],
)
async def test_a_refused_broadcast_is_a_503_and_can_be_joined(scene: Scene, fault: Fault, code: str) -> None:
    post = scene.post()
    async with scene.stage_behind_proxy(timeout_s=0.5, queue_timeout_ms=1500) as (stage, proxy):
        stage.start(scene.relayer)
        with proxy.fault(fault), pytest.raises(Retryable) as refused:
            await stage.relaying.relay(post)
        assert (refused.value.kind, refused.value.code) == ("relay_unavailable", code)
        outcome = None
        while outcome is None:
            with suppress(Retryable):  # the relayer backs off, and this client repeats its request
                outcome = await stage.relaying.relay(post)
        assert isinstance(outcome, RelayMined)
        assert await stage.fetchval("select count(*) from relays") == 1
        assert await stage.fetchval("select refusal from relay_txs") is None


async def test_a_broadcast_without_an_answer_is_a_504(scene: Scene) -> None:
    """A later refusal proves nothing, because a node may have the bytes of the first broadcast."""
    async with scene.stage_behind_proxy(timeout_s=0.5, queue_timeout_ms=1500, receipt_wait_s=1.5) as (stage, proxy):
        stage.start(scene.relayer)
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 502)), anyio.move_on_after(1):
            await stage.relaying.relay(post := scene.post())
        with proxy.fault(HttpStatus("eth_sendRawTransaction", 429)):
            assert isinstance(await stage.relaying.relay(post), NoReceipt)


async def test_a_node_slow_to_accept_bytes_lets_no_more_in(scene: Scene) -> None:
    late = Late("eth_sendRawTransaction")
    async with (
        scene.stage_behind_proxy(max_depth=2, queue_timeout_ms=1500) as (stage, proxy),
        stage.relayed(scene.post()),
    ):
        stage.start(scene.relayer)
        with proxy.fault(late):
            while not proxy.seen("eth_sendRawTransaction"):  # noqa: ASYNC110 - the proxy counts, it does not tell
                await anyio.sleep(0.02)
            refused = await refusals(stage, [scene.post() for _ in range(5)])
            late.until.set()
        assert sorted(refused) == ["relay_queue_full"] * 3 + ["relay_queue_timeout"] * 2
        await stage.until("select count(*) = 1 from relays where state = 'mined'")
        assert await stage.fetchval("select count(*) from relay_txs") == 1


async def test_a_simulation_that_answers_too_late_signs_nothing(scene: Scene) -> None:
    late = Late("eth_call")
    async with scene.stage_behind_proxy(queue_timeout_ms=600) as (stage, proxy):
        stage.start(scene.relayer)
        with proxy.fault(late):
            with anyio.fail_after(3):  # the node's timeout is 5
                assert await refusals(stage, [scene.post()]) == ["relay_queue_timeout"]
            late.until.set()
        await stage.until("select state = 'dropped' from relays")
        assert await stage.fetchval("select count(*) from relay_txs") == 0


async def refusals(stage: Stage, posts: Sequence[NewRelay]) -> list[str | None]:
    """Return the codes by which these concurrent posts are refused."""
    codes: list[str | None] = []

    async def relay(post: NewRelay) -> None:
        with pytest.raises(Retryable) as refused:
            await stage.relaying.relay(post)
        codes.append(refused.value.code)

    async with anyio.create_task_group() as callers:
        for post in posts:
            callers.start_soon(relay, post)
    return codes


async def test_requeued_relay_returns_the_broadcast_hash_on_timeout(scene: Scene) -> None:
    """An outside transaction took the nonce, and no node can simulate the op now."""
    post = scene.post()
    outcomes: list[object] = []
    async with mining_by_hand(scene.anvil), scene.stage_behind_proxy(timeout_s=0.5, receipt_wait_s=3) as (stage, proxy):
        relaying = stage.start(scene.relayer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(stage, outcomes), post)
            await stage.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
            sent = await stage.fetchval("select hash from relay_tx_versions")
            await scene.anvil.call("anvil_dropAllTransactions")
            await scene.anvil.call("eth_sendTransaction", {"from": scene.account, "to": scene.account, "nonce": "0x0"})
            with proxy.fault(HttpStatus("eth_call", 503), HttpStatus("eth_estimateGas", 503)):
                await scene.anvil.call("evm_mine")
                await stage.until("select state = 'queued' and requeued = 1 from relays")
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
async def test_lies_about_the_chain_end_no_relay_wrongly(scene: Scene, faults: tuple[Fault, ...]) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5) as (stage, proxy):
        stage.start(scene.relayer)
        assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        async with stage.relayed(scene.post()):
            with proxy.fault(*faults), anyio.move_on_after(1.5):
                await stage.until("select count(*) = 2 from relays where state = 'mined'")
        await scene.check(stage)


async def test_overcounting_node_costs_only_self_transfers(scene: Scene) -> None:
    async with scene.stage_behind_proxy(timeout_s=0.5) as (stage, proxy), stage.relayed(scene.post()):
        with proxy.fault(Rewrite("eth_getTransactionCount", lambda _params, count: hex(int(count, 16) + 3))):
            stage.start(scene.relayer)
            await stage.until("select count(*) = 1 from relay_txs where broadcast_at is not null")
        await stage.until("select count(*) = 4 from relay_txs where block_number is not null")
        await stage.until("select state = 'mined' from relays")
        assert await stage.fetchval("select count(*) from relay_txs where purpose = 'fill'") == 3
        await scene.check(stage)


LARGE = 3_000  # bytes: of six posts together, not of one
UNSEEN = "no wording that anybody has seen"
CAPPED = "transaction gas limit too high (cap: 1000000, tx: 1200000)"
OVERSIZED = "oversized data: transaction size 131700, limit 131072"
NOT_SERVED = "the method eth_sendRawTransaction does not exist/is not available"


@pytest.mark.parametrize("message", [CAPPED, OVERSIZED, UNSEEN])
async def test_rejected_bytes_yield_to_a_self_transfer(scene: Scene, message: str) -> None:
    outcomes: list[object] = []
    async with scene.stage_behind_proxy(mined_within_s=1.0) as (stage, proxy):
        with proxy.fault(RefuseTransactions(lambda raw: len(raw) > LARGE, message)):
            await stage.queue([scene.post() for _ in range(6)])
            stage.start(scene.relayer)
            async with anyio.create_task_group() as callers:  # later ops, stuck until the nonce is closed
                for sent in (1, 3):
                    while proxy.seen("eth_sendRawTransaction") < sent:  # noqa: ASYNC110 - the event is in the proxy
                        await anyio.sleep(0.02)
                    callers.start_soon(relay_into(stage, outcomes), scene.request_capacity())
            await stage.until("select bool_and(state = 'mined') from relays")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 2
        assert await stage.fetchval("select array_agg(requeued order by id) from relays where kind = 'post'") == [1] * 6
        assert await stage.fetchval("select count(*) from relay_tx_versions where fills") == 1
        await scene.check(stage)


@pytest.mark.parametrize(
    "fault",
    [ErrorAnswer("eth_sendRawTransaction", -32601, NOT_SERVED), HttpStatus("eth_sendRawTransaction", 403)],
    ids=["method not found", "forbidden"],
)
async def test_endpoint_that_serves_no_sending_is_named_to_callers(scene: Scene, fault: Fault) -> None:
    async with scene.stage_behind_proxy(queue_timeout_ms=1500) as (stage, proxy):
        stage.start(scene.relayer)
        post = scene.post()
        with proxy.fault(fault):
            for op, code in ((post, "endpoint_refused"), (scene.post(), "relay_queue_timeout")):
                with anyio.fail_after(60), pytest.raises(Retryable) as refused:
                    await stage.relaying.relay(op)
                assert (refused.value.kind, refused.value.code) == ("relay_unavailable", code)
            assert await stage.fetchval("select count(*) from relay_txs") == 1
        assert isinstance(await stage.relaying.relay(post), RelayMined)  # joins the op that is already retried
        states = await stage.fetchval("select array_agg(state::text order by id) from relays")
        assert states == ["mined", "dropped"]
        await scene.check(stage)


@asynccontextmanager
async def behind_proxies(scene: Scene, count: int) -> AsyncIterator[tuple[Stage, list[RpcProxy]]]:
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(rpc_proxy(scene.anvil.rpc_url)) for _ in range(count)]
        urls = [proxy.url for proxy in proxies]
        yield await stack.enter_async_context(scene.stage(urls, timeout_s=10.0)), proxies


async def mined_once(stage: Stage, scene: Scene) -> None:
    assert await stage.fetchval("select count(*) from relay_txs") == 1
    assert await stage.fetchval("select count(*) from relays where state = 'mined'") == 1
    await scene.check(stage)


def failed(_params: Any, receipt: Any) -> Any:
    return receipt and {**receipt, "status": "0x0", "logs": []}


LIES: list[tuple[Fault, ...]] = [
    (Rewrite("eth_getTransactionReceipt", failed),),
    (Rewrite("eth_getTransactionReceipt", lambda _params, _receipt: None),),
    (Rewrite("eth_getBlockByNumber", lambda _params, block: {**block, "transactions": []}),),
]
NAMES = ["reverted", "no receipt", "transactions withheld"]


async def test_relay_is_mined_by_the_other_node(scene: Scene) -> None:
    async with behind_proxies(scene, 2) as (stage, (first, second)), mining_by_hand(scene.anvil):
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            await stage.until(BROADCAST, 1)
            with first.fault(HttpStatus(ANY, 503)):
                await scene.anvil.call("evm_mine")
                await stage.until("select count(*) = 1 from relays where state = 'mined'")
        assert isinstance(stage.rpc, PinnedRpc)
        assert stage.rpc.node.name == second.url.removeprefix("http://")
        await mined_once(stage, scene)


@pytest.mark.parametrize("lie", LIES, ids=NAMES)
async def test_lying_receipt_ends_no_relay_until_nodes_agree(scene: Scene, lie: tuple[Fault, ...]) -> None:
    async with behind_proxies(scene, 2) as (stage, (first, _)):
        stage.start(scene.relayer)
        async with stage.relayed(scene.post()):
            with first.fault(*lie):
                await stage.until(BROADCAST, 1)
                with anyio.move_on_after(4):
                    await stage.until("select count(*) = 1 from relays where state <> 'signed'")
                states = await stage.fetchval("select array_agg(state) from relays")
                assert states in (["signed"], ["mined"])  # mined only if both nodes agree
                if lie is LIES[0]:
                    assert states == ["signed"]
                    assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "receipts"}) == 0
        await mined_once(stage, scene)
        assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "receipts"}) == 2


@pytest.mark.parametrize("lie", LIES, ids=NAMES)
async def test_of_three_nodes_a_liar_is_left_for_two_that_agree(scene: Scene, lie: tuple[Fault, ...]) -> None:
    async with behind_proxies(scene, 3) as (stage, (first, *_)):
        stage.start(scene.relayer)
        with first.fault(*lie), anyio.fail_after(60):
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)
        await mined_once(stage, scene)
