"""An index with several nodes, one of which dies, lags, lies or follows another branch. Only what two nodes agree on is
accepted, and no event is lost."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.agreement import CheckedSource, Disagreement
from coordinatord.chain.indexer.follow import IndexFollower
from coordinatord.chain.indexer.position_sql import read_position
from coordinatord.chain.rpc.nodes import Nodes, open_nodes
from coordinatord.storage.database.connections import Connection
from devnet.world import World
from tests.integration.coordinatord.indexer.index_rows import index_rows
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.indexer.scene import JOURNAL_BLOCKS, Scene, follower_of
from tests.support.faults.rpc_proxy import ANY, ErrorAnswer, Fault, Hang, HttpStatus, Rewrite, RpcProxy, rpc_proxy

pytestmark = pytest.mark.anyio


@attrs.define
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@attrs.frozen
class Several:
    proxies: Sequence[RpcProxy]
    nodes: Nodes
    follower: IndexFollower
    clock: Clock


@asynccontextmanager
async def several(world: World, count: int, timeout_s: float = 20.0) -> AsyncIterator[Several]:
    """`timeout_s` is the timeout of a node. Short for nodes that do not answer."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(rpc_proxy(world.anvil.rpc_url)) for _ in range(count)]
        nodes = await stack.enter_async_context(open_nodes([proxy.url for proxy in proxies], timeout_s=timeout_s))
        clock = Clock()
        source = CheckedSource(nodes, LogDecoder(address_book(world)), clock)  # type: ignore[arg-type] # a source
        yield Several(proxies, nodes, follower_of(source, world, JOURNAL_BLOCKS), clock)


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


def lagging(blocks: int) -> Rewrite:
    """A node that reports a head of that many blocks ago. Lag is measured by this number alone."""

    def older(params: Any, block: Any) -> Any:
        return {**block, "number": hex(int(block["number"], 16) - blocks)} if params[0] == "latest" else block

    return Rewrite("eth_getBlockByNumber", older)


def other_branch(above: int) -> tuple[Fault, ...]:
    """Blocks above this number have other, correctly linked hashes, and no logs."""

    def renamed(number: int, text: str) -> str:
        return "0x" + "f0" * 4 + text[10:] if number > above else text

    def forked(_params: Any, block: Any) -> Any:
        number = int(block["number"], 16)
        hashes = {
            "hash": renamed(number, block["hash"]),
            "parentHash": renamed(number - 1, block["parentHash"]),
        }
        return {**block, **hashes, "logsBloom": "0x" + "00" * 256}

    return (Rewrite("eth_getBlockByNumber", forked), ErrorAnswer("eth_getLogs", -32000, "unknown block"))


def contradicted(node: int, on: Several) -> float:
    name = on.nodes.all[node].name
    return REGISTRY.get_sample_value("coordinatord_node_contradicted_total", {"node": name}) or 0.0


async def until_caught_up(on: Several, connection: Connection, tries: int = 8) -> None:
    """Follow the chain like the follower, and retry after errors."""
    for _ in range(tries):
        try:
            await on.follower.catch_up(connection)
        except Retryable:
            await anyio.sleep(0.01)
        else:
            return
    await on.follower.catch_up(connection)


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


@pytest.mark.parametrize("fault", [HttpStatus(ANY, 503), Hang(ANY), ErrorAnswer("eth_getLogs", -32601, "no such")])
@pytest.mark.parametrize("dead", [0, 1])
async def test_failing_node_is_left_out_until_it_recovers(
    scene: Scene, world: World, connection: Connection, fault: Fault, dead: int
) -> None:
    async with several(world, 2, timeout_s=1.0 if isinstance(fault, Hang) else 20.0) as on:
        await on.follower.catch_up(connection)
        await scene.play(3, 3)
        with on.proxies[dead].fault(fault):
            await until_caught_up(on, connection)
            await scene.check_registries()
            assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "index"}) == 1
        await scene.play(2, 2)
        on.clock.now += 300
        for node in on.nodes.all:
            await node.rpc.call("eth_chainId")  # as the watch would notice its recovery
        await until_caught_up(on, connection)
        assert REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "index"}) == 2
    await scene.check()


async def test_far_lagging_node_is_skipped(scene: Scene, world: World, connection: Connection) -> None:
    async with several(world, 2) as on:
        await on.follower.catch_up(connection)
        await scene.play(3, 3)
        head = await scene.head()
        with on.proxies[1].fault(lagging(2)):
            await on.follower.catch_up(connection)
            position = await read_position(connection)
            assert position is not None
            assert position.block_number == head - 2
        with on.proxies[1].fault(lagging(20)):
            asked = on.proxies[1].seen("eth_getLogs")
            await on.follower.catch_up(connection)
            assert on.proxies[1].seen("eth_getLogs") == asked
            position = await read_position(connection)
            assert position is not None
            assert position.block_number == head
    await scene.check()


@pytest.mark.parametrize("count", [2, 3])
async def test_node_on_another_branch_does_not_undo_the_index(
    scene: Scene, world: World, connection: Connection, count: int
) -> None:
    async with several(world, count) as on:
        await on.follower.catch_up(connection)
        before, head = await index_rows(connection), await scene.head()
        await scene.play(3, 3)
        with on.proxies[0].fault(*other_branch(head - 2)):
            if count == 2:
                with pytest.raises(Disagreement):
                    await on.follower.catch_up(connection)
                assert await index_rows(connection) == before
            else:
                await on.follower.catch_up(connection)
                await scene.check_registries()
                assert contradicted(0, on) == 0  # an honest node may be there for a block or two
        await on.follower.catch_up(connection)
    await scene.check()
