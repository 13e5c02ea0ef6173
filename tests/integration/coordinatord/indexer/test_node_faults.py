"""A node fails or lies, through the proxy. The index stops, and continues when the node has recovered. Of several
nodes, only what two agree on is accepted.

The market stays active during each fault. The index must not move past checked blocks, must not change, and must end
equal to the registries."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from common.daemon.logs import log_task_failure
from common.daemon.supervision import Supervisor
from coordinatord.api.system.readiness import MAX_RELAYER_ABSENCE_S, ReadinessCheck
from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.agreement import CheckedSource, Disagreement
from coordinatord.chain.indexer.fetch import NodeSource
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.chain.relayer.role import RelayerRole, relayer_role_of
from coordinatord.chain.rpc.client import Rpc, open_rpc
from coordinatord.chain.rpc.nodes import Nodes, open_nodes
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.locks import lock_key
from coordinatord.storage.database.role_connection import relayer_role_name
from devnet.anvil import CHAIN_ID
from devnet.world import World
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.indexer.scene import JOURNAL_BLOCKS, Scene, follower_of, index_rows, indexing
from tests.support.faults.rpc_proxy import (
    ErrorAnswer,
    Fault,
    Hang,
    HttpStatus,
    RefuseWideRanges,
    Rewrite,
    RpcProxy,
    Truncate,
    logs_of_another_block,
    rpc_proxy,
    withheld_logs,
)


@attrs.frozen
class Behind:
    """An index behind a faulty proxy, and its readiness."""

    proxy: RpcProxy
    source: NodeSource
    follower: IndexFollower
    readiness: ReadinessCheck


def relayer_of(world: World) -> RelayerRole:
    return relayer_role_of(address_book(world), bytes.fromhex(world.wallets.with_role("relayer")[0].address[2:]))


def readiness_of(
    database: Database, rpc: Rpc, world: World, timeout_s: float = 3, clock: Callable[[], float] = time.monotonic
) -> ReadinessCheck:
    return ReadinessCheck(
        database,
        rpc,
        block_time_ms=0,
        ready_lag_blocks=2,
        role=relayer_of(world),
        chain_id=CHAIN_ID,
        supervisor=Supervisor(lambda task, number: None, log_task_failure),
        timeout_s=timeout_s,
        clock=clock,
    )


@pytest.fixture
async def behind(scene: Scene, world: World, database: Database) -> AsyncIterator[Behind]:
    async with rpc_proxy(world.anvil.rpc_url) as proxy, open_rpc(proxy.url, timeout_s=2) as rpc:
        source = NodeSource(rpc, LogDecoder(address_book(world)))
        readiness = readiness_of(database, rpc, world)
        yield Behind(proxy, source, follower_of(source, world, JOURNAL_BLOCKS), readiness)


async def test_relayer_role_without_holder_makes_unready(
    behind: Behind, world: World, database: Database, connection: Connection
) -> None:
    await behind.follower.catch_up(connection)
    now = 100.0
    async with open_rpc(world.anvil.rpc_url) as rpc:
        readiness = readiness_of(database, rpc, world, clock=lambda: now)
        faults = [(await readiness.report()).fault]
        now += MAX_RELAYER_ABSENCE_S
        faults.append((await readiness.report()).fault)
        await connection.execute(
            "select pg_advisory_lock($1)", lock_key(relayer_role_name(CHAIN_ID, relayer_of(world).account))
        )
        now += 1
        faults.append((await readiness.report()).fault)
        assert faults == [None, "relayer_absent", None]


async def test_database_that_hangs_makes_unready_until_it_answers(
    behind: Behind, world: World, database: Database, connection: Connection
) -> None:
    await behind.follower.catch_up(connection)
    async with open_rpc(world.anvil.rpc_url) as rpc:
        readiness = readiness_of(database, rpc, world, timeout_s=1)
        assert (await readiness.report()).ready
        async with connection.transaction():
            await connection.execute("lock table index_position")
            with anyio.fail_after(60):
                report = await readiness.report()
            assert (report.ready, report.reason, report.fault) == (False, "cold_start", "database_unavailable")
        assert (await readiness.report()).ready


async def test_clock_that_is_behind_the_chain_is_measured(behind: Behind, connection: Connection) -> None:
    def an_hour_ahead(_params: Any, block: Any) -> Any:
        return {**block, "timestamp": hex(int(block["timestamp"], 16) + 3600)}

    with behind.proxy.fault(Rewrite("eth_getBlockByNumber", an_hour_ahead)):
        await behind.follower.catch_up(connection)
    ahead = REGISTRY.get_sample_value("coordinatord_clock_ahead_seconds", {"source": "chain"})
    assert ahead is not None
    assert -3700 < ahead < -3000


def other_header(params: Any, block: Any) -> Any:
    return block if params[0] == "latest" else {**block, "parentHash": "0x" + "cd" * 32}


def half_of(_params: Any, logs: Any) -> Any:
    return logs[: len(logs) // 2]


def spoilt(_params: Any, logs: Any) -> Any:
    return [{**log, "data": log["data"][:-2]} for log in logs]


LIES_AND_FAILURES: list[tuple[str, Fault]] = [
    ("limit", ErrorAnswer("eth_getLogs", -32005, "daily request count exceeded, request rate limited")),
    ("internal", ErrorAnswer("eth_getLogs", -32603, "internal error")),
    ("no method", ErrorAnswer("eth_getBlockByNumber", -32601, "method not found")),
    ("head fails", ErrorAnswer("eth_getBlockByNumber", -32603, "internal error")),
    ("5xx", HttpStatus("eth_getLogs", 503)),
    ("429", HttpStatus("eth_getBlockByNumber", 429)),
    ("hang", Hang("eth_getLogs")),
    ("truncated", Truncate("eth_getLogs")),
    ("withheld logs", withheld_logs()),
    ("logs of another block", logs_of_another_block()),
    ("unlinked headers", Rewrite("eth_getBlockByNumber", other_header)),
    ("no such block", Rewrite("eth_getBlockByNumber", lambda params, block: block if params[0] == "latest" else None)),
    ("malformed logs", Rewrite("eth_getLogs", spoilt)),
    ("not JSON-RPC", HttpStatus("eth_getLogs", 200, b"<html>")),
]


@pytest.mark.parametrize(
    "fault", [fault for _, fault in LIES_AND_FAILURES], ids=[name for name, _ in LIES_AND_FAILURES]
)
@pytest.mark.parametrize("backfill", [False, True], ids=["near the head", "in backfill"])
async def test_faulty_node_stops_the_index_unchanged(
    scene: Scene, behind: Behind, connection: Connection, fault: Fault, backfill: bool
) -> None:
    await behind.follower.catch_up(connection)
    assert (await behind.readiness.report()).reason == "ready"
    before = await index_rows(connection)
    await scene.play(4, 4)
    if backfill:
        await scene.world.anvil.call("anvil_mine", hex(JOURNAL_BLOCKS + 1))
    with behind.proxy.fault(fault):
        with pytest.raises(Retryable):
            await behind.follower.catch_up(connection)
        assert await index_rows(connection) == before
        assert (await behind.readiness.report()).ready is False
    await behind.follower.catch_up(connection)
    assert (await behind.readiness.report()).reason == "ready"
    await scene.check()


@pytest.mark.parametrize(
    ("message", "widest"),
    [
        ("query returned more than 10000 results. Try with this block range [{first}, {last}].", 7),
        ("eth_getLogs is limited to a {widest} range", 9),
        ("block range is too wide", 3),
    ],
)
async def test_ranges_adapt_to_what_the_node_takes(
    scene: Scene, behind: Behind, connection: Connection, message: str, widest: int
) -> None:
    await scene.play(20, 20)
    await scene.world.anvil.call("anvil_mine", hex(JOURNAL_BLOCKS))
    with behind.proxy.fault(RefuseWideRanges(widest, message)):
        await behind.follower.catch_up(connection)
    await scene.check()


async def test_missing_logs_are_detected_and_recovered(
    scene: Scene, behind: Behind, connection: Connection, database: Database
) -> None:
    """Withholding part of a block's logs is not noticed at first. Later events contradict the index, which is then
    rebuilt."""
    await behind.follower.catch_up(connection)
    await scene.world.anvil.call("evm_setAutomine", False)
    posts = [await scene.moves.sent_post() for _ in range(2)]
    await scene.world.anvil.call("evm_mine")
    await scene.world.anvil.call("evm_setAutomine", True)
    with behind.proxy.fault(Rewrite("eth_getLogs", half_of)):
        await behind.follower.catch_up(connection)
    assert await connection.fetchval("select count(*) from jobs") == len(posts) - 1
    while scene.moves.open:
        await scene.moves.claim()
    async with indexing(database, behind.source, scene.world) as running:
        await running.until_at(await scene.moves.chain.web3.eth.block_number)
    await scene.check()


async def test_readiness_without_a_node_is_chain_unreachable(behind: Behind, connection: Connection) -> None:
    with behind.proxy.fault(HttpStatus("*", 502)):
        report = await behind.readiness.report()
    assert (report.reason, report.cursor, report.head_block, report.lag) == ("chain_unreachable", None, None, None)


async def test_readiness_reports_reorg_during_a_rebuild(scene: Scene, behind: Behind, connection: Connection) -> None:
    anvil = scene.world.anvil
    follower = follower_of(behind.source, scene.world, journal_blocks=2)
    snapshot, moves = await anvil.call("evm_snapshot"), scene.moves.branch()
    await scene.play(6, 2)
    await follower.catch_up(connection)
    await anvil.call("evm_revert", snapshot)
    scene.moves = moves
    await scene.play(7, 2)
    with behind.proxy.fault(RefuseWideRanges(0, "block range is too wide")):  # without ranges no replay
        with pytest.raises(Retryable):
            await follower.catch_up(connection)
        assert (await behind.readiness.report()).reason == "reorg"
    await follower.catch_up(connection)
    assert (await behind.readiness.report()).reason == "ready"
    await scene.check()


@attrs.frozen
class Several:
    proxies: Sequence[RpcProxy]
    nodes: Nodes
    follower: IndexFollower


@asynccontextmanager
async def several(world: World, count: int) -> AsyncIterator[Several]:
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(rpc_proxy(world.anvil.rpc_url)) for _ in range(count)]
        nodes = await stack.enter_async_context(open_nodes([proxy.url for proxy in proxies]))
        source = CheckedSource(nodes, LogDecoder(address_book(world)))
        yield Several(proxies, nodes, follower_of(source, world, JOURNAL_BLOCKS))


def without_filters(_params: Any, block: Any) -> Any:
    """A block that consistently claims to have no logs."""
    return block and {**block, "logsBloom": "0x" + "00" * 256}


def dropped_log(_params: Any, logs: Any) -> Any:
    return logs[:-1]


def another_payer(_params: Any, logs: Any) -> Any:
    """Replace the second topic of each log, so that events name the wrong accounts."""
    return [{**log, "topics": [log["topics"][0], "0x" + "00" * 31 + "07", *log["topics"][2:]]} for log in logs]


DROPPED: tuple[Fault, ...] = (
    Rewrite("eth_getLogs", dropped_log),
    Rewrite("eth_getBlockByNumber", without_filters),
)
ALTERED: tuple[Fault, ...] = (Rewrite("eth_getLogs", another_payer),)


def contradicted(node: int, on: Several) -> float:
    name = on.nodes.all[node].name
    return REGISTRY.get_sample_value("coordinatord_node_contradicted_total", {"node": name}) or 0.0


@pytest.mark.parametrize("lie", [DROPPED, ALTERED], ids=["a log dropped", "logs altered"])
@pytest.mark.parametrize("backfill", [False, True], ids=["near the head", "in backfill"])
async def test_differing_nodes_are_both_named_and_not_believed(
    scene: Scene, world: World, connection: Connection, lie: tuple[Fault, ...], backfill: bool
) -> None:
    async with several(world, 2) as on:
        await on.follower.catch_up(connection)
        before = await index_rows(connection)
        await scene.play(4, 4)
        if backfill:
            await world.anvil.call("anvil_mine", hex(JOURNAL_BLOCKS + 1))
        with on.proxies[1].fault(*lie):
            for _ in range(5):
                with pytest.raises(Disagreement) as waiting:
                    await on.follower.catch_up(connection)
        assert all(node.name in waiting.value.message for node in on.nodes.all)
        assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "index"}) == 0
        assert await index_rows(connection) == before
        await on.follower.catch_up(connection)
        assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "index"}) == 2
    await scene.check()


@pytest.mark.parametrize("liar", [0, 1, 2])
async def test_of_three_two_decide_and_the_liar_is_not_asked_again(
    scene: Scene, world: World, connection: Connection, liar: int
) -> None:
    async with several(world, 3) as on:
        await on.follower.catch_up(connection)
        await scene.play(4, 4)
        with on.proxies[liar].fault(*ALTERED):
            await on.follower.catch_up(connection)
            assert contradicted(liar, on) == (1 if liar < 2 else 0)  # the third is read only when two differ
            await scene.check_registries()
            if liar < 2:
                asked = on.proxies[liar].seen("eth_getLogs")
                await scene.play(2, 2)
                await on.follower.catch_up(connection)
                assert on.proxies[liar].seen("eth_getLogs") == asked
    await scene.check()
