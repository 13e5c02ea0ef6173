"""Several nodes: which node is asked, which one answers after a failure, and when the coordinator changes its node."""

import json
from collections.abc import Callable

import anyio
import attrs
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.node import Node, rejects_client
from coordinatord.chain.rpc.nodes import Nodes, node_names
from coordinatord.chain.rpc.pinned import PinnedRpc

LIMITED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"limit exceeded"}}'
REVERTED = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted"}}'


@attrs.define
class Endpoint:
    """A node that answers every call with its number, or as scripted."""

    number: int
    asked: int = 0
    gone: bool = False
    answer: tuple[int, bytes] | None = None
    before: Callable[[], None] = lambda: None

    async def __call__(self, body: bytes) -> tuple[int, bytes]:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        self.before()
        if self.gone:
            raise NoResponse("refused")
        if self.answer is not None:
            return self.answer
        return 200, json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": hex(self.number)}).encode()


@attrs.define
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@attrs.frozen
class Place:
    endpoints: list[Endpoint]
    nodes: Nodes
    clock: Clock

    @classmethod
    def of(cls, count: int) -> "Place":
        clock = Clock()
        endpoints = [Endpoint(number) for number in range(count)]
        nodes = [Node(f"node{number}", endpoint, clock=clock) for number, endpoint in enumerate(endpoints)]
        return cls(endpoints, Nodes(nodes, max_lag_blocks=5), clock)

    async def asked(self) -> int:
        """Return the number of the node that answers."""
        return int(str(await Rpc(self.nodes.transport()).call("eth_chainId")), 16)

    def heads(self, *heads: int) -> list[str]:
        for node, head in zip(self.nodes.all, heads, strict=True):
            node.record_head(head)
        return [node.name for node in self.nodes.fit_nodes()]


async def test_the_first_node_is_asked_and_the_next_when_it_is_gone() -> None:
    place = Place.of(2)
    assert await place.asked() == 0
    place.endpoints[0].gone = True
    assert await place.asked() == 1
    assert place.nodes.all[0].is_failing


@pytest.mark.parametrize(
    "answer", [(429, b"slow down"), (403, b""), (502, b"<html>"), (200, LIMITED), (200, b"[" + LIMITED + b"]")]
)
async def test_node_that_rejects_us_is_skipped(answer: tuple[int, bytes]) -> None:
    place = Place.of(2)
    place.endpoints[0].answer = answer
    assert await place.asked() == 1


@pytest.mark.parametrize("answer", [(200, REVERTED), (400, REVERTED), (200, b'{"result":"\\"error\\""}')])
def test_chain_error_is_not_a_rejection_of_us(answer: tuple[int, bytes]) -> None:
    assert not rejects_client(*answer)


async def test_rejection_by_all_nodes_is_reported() -> None:
    place = Place.of(2)
    for endpoint in place.endpoints:
        endpoint.answer = (429, b"slow down")
    with pytest.raises(Retryable) as limited:
        await place.asked()
    assert limited.value.code == "rate_limited"


async def test_unreachable_node_is_left_out_longer_each_time() -> None:
    place = Place.of(2)
    (away, _), (node, _) = place.endpoints, place.nodes.all
    away.gone = True
    rests = []
    for _ in range(12):
        while node.is_skipped:
            place.clock.now += 1
        before, asked = place.clock.now, away.asked
        await node.read_head(0)
        assert away.asked > asked
        while node.is_skipped:
            place.clock.now += 1
        rests.append(place.clock.now - before)
    assert rests[:7] == [0, 0, 1, 2, 4, 8, 16]
    assert max(rests) == 60
    assert node.is_unreachable
    assert [fit.name for fit in place.nodes.fit_nodes()] == ["node1"]
    away.gone = False
    await node.read_head(0)
    assert not node.is_unreachable
    assert await place.asked() == 0


@pytest.mark.parametrize(
    ("heads", "fit"),
    [
        ((100, 100), ["node0", "node1"]),
        ((95, 100), ["node0", "node1"]),
        ((94, 100), ["node1"]),
        ((100, 94), ["node0"]),
        ((100, 90, 101), ["node0", "node2"]),
        # with three nodes the median head decides, so no node can run ahead alone
        ((100, 1_000_000, 99), ["node0", "node2"]),
    ],
)
async def test_a_node_out_of_step_is_not_asked(heads: tuple[int, ...], fit: list[str]) -> None:
    assert Place.of(len(heads)).heads(*heads) == fit


async def test_node_of_another_chain_is_never_used() -> None:
    place = Place.of(2)
    place.endpoints[0].number = 31337
    await place.nodes.read_heads(31337)
    place.endpoints[0].gone = True
    assert [node.name for node in place.nodes.fit_nodes()] == ["node0"]
    with pytest.raises(Retryable):
        await place.asked()
    assert place.endpoints[1].asked == 2  # its chain id and its head


async def test_doubted_node_returns_after_ten_minutes_or_as_the_last() -> None:
    place = Place.of(2)
    place.nodes.all[0].suspend("blocks 1 to 2")
    assert await place.asked() == 1
    place.endpoints[1].gone = True
    for _ in range(3):
        with pytest.raises(Retryable):
            await place.asked()
    assert await place.asked() == 0  # without a good node, use any
    place.clock.now += 600
    place.endpoints[1].gone = False
    assert not place.nodes.all[0].is_suspended


async def test_pinned_node_changes_only_between_decisions() -> None:
    place = Place.of(2)
    pinned = PinnedRpc(place.nodes)
    entered, leave = anyio.Event(), anyio.Event()
    order: list[str] = []

    async def long_decision() -> None:
        async with pinned.decision():
            entered.set()
            await leave.wait()
            assert pinned.node.name == "node0"
            order.append("decided on node0")

    async def leading() -> None:
        async with pinned.decision(may_change_node=True):
            order.append(f"led on {pinned.node.name}")
            assert await pinned.call("eth_chainId") == "0x1"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(long_decision)
        await entered.wait()
        place.heads(10, 100)
        tasks.start_soon(leading)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert order == []  # it waits for the request in progress
        leave.set()
    assert order == ["decided on node0", "led on node1"]
    place.heads(100, 100)
    async with pinned.decision(may_change_node=True):
        assert pinned.node.name == "node1"  # no reason to switch back


async def test_pinned_node_is_replaced_after_three_failures() -> None:
    place = Place.of(2)
    pinned = PinnedRpc(place.nodes)

    async def failing() -> None:
        async with pinned.decision(may_change_node=True):
            assert pinned.node.name == "node0"
            raise Retryable("chain_unreachable", "it withholds receipts")

    for _ in range(3):
        with pytest.raises(Retryable):
            await failing()
    async with pinned.decision(may_change_node=True):
        assert pinned.node.name == "node1"


async def test_single_node_is_always_used() -> None:
    place = Place.of(1)
    pinned = PinnedRpc(place.nodes)
    place.endpoints[0].gone = True
    for _ in range(5):
        with pytest.raises(Retryable):
            await place.asked()
        with pytest.raises(Retryable):
            async with pinned.decision(may_change_node=True):
                await pinned.call("eth_chainId")
    assert place.endpoints[0].asked == 10


def test_names_tell_nodes_apart_and_tell_no_key() -> None:
    urls = ["https://user:secret@a.example/v3/key", "https://a.example/v3/other", "http://b.example:8545/?k=key"]
    assert node_names(urls) == ["a.example", "a.example#2", "b.example:8545"]


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((7, 7), 7),
        ((7, 8), None),
        ((7, 8, 8), 8),
        ((8, 7, 8), 8),
        ((7, 8, 9), None),
        ((7, None), 7),
        ((None, 7, 8), None),
    ],
)
async def test_two_agreeing_nodes_are_needed_unless_one_is_alone(
    numbers: tuple[int | None, ...], told: int | None
) -> None:
    place = Place.of(len(numbers))
    for endpoint, number in zip(place.endpoints, numbers, strict=True):
        endpoint.number, endpoint.gone = number or 0, number is None
    rpc = Rpc(place.nodes.agreed_transport())
    if told is None:
        with pytest.raises(Retryable, match="nodes contradict each other"):
            await rpc.call("eth_chainId")
    else:
        assert await rpc.call("eth_chainId") == hex(told)


async def test_a_node_that_is_a_block_behind_is_asked_again() -> None:
    place = Place.of(2)
    ahead, behind = place.endpoints
    ahead.number = 5
    behind.before = lambda: setattr(behind, "number", 5 if behind.asked > 1 else 4)
    assert await Rpc(place.nodes.agreed_transport()).call("eth_chainId") == "0x5"
    assert behind.asked == 2
