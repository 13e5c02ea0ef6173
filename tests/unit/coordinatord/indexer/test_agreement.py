"""The index accepts blocks on which two nodes agree, and leaves out nodes that disagree or fail."""

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.indexer import agreement
from coordinatord.chain.indexer.agreement import CheckedSource, Disagreement
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.fetch import RangeWidth
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from tests.support.fakes.chain import DECODER

WIDTH = RangeWidth(100)


def header(number: int, branch: str = "aa", *, parent: str = "bb", time: int = 5) -> BlockHeader:
    return BlockHeader(hex(number), f"0x{branch}", f"0x{parent}", hex(time), "0x00")


def logs(*events: Any, branch: str = "aa") -> BlockRange:
    return BlockRange([header(1), header(2, branch)], events)


@attrs.define(eq=False)
class Told:
    """A node that gives the same answer to every request, or fails."""

    answer: Any = None
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)
    mined: list[BlockHeader] | None = None  # headers, if they differ from the answer
    meets: Callable[[], Any] | None = None

    async def _answered(self, *question: Any) -> Any:
        self.asked.append(question)
        if self.meets is not None:
            await self.meets()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def head(self) -> Any:
        return await self._answered("head")

    async def chain_id(self) -> Any:
        return await self._answered("chain_id")

    async def headers(self, first: int, last: int) -> Any:
        answer = await self._answered("headers", first, last)
        if self.mined is not None:
            return self.mined
        return [answer] if isinstance(answer, BlockHeader) else answer

    async def blocks(self, first: int, last: int) -> Any:
        return await self._answered("blocks", first, last)

    async def range(self, first: int, last: int, width: RangeWidth) -> Any:
        return await self._answered("range", first, last, width)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.now = 1000.0
        self.told = [Told(answer) for answer in answers]
        self.nodes = [Node(f"n{place}", self._nothing, clock=lambda: self.now) for place in range(len(answers))]
        of_rpc = {id(node.rpc): told for node, told in zip(self.nodes, self.told, strict=True)}

        def source(rpc: object, decoder: object) -> Told:
            assert decoder is DECODER
            return of_rpc[id(rpc)]

        monkeypatch.setattr(agreement, "NodeSource", source)
        self.source = CheckedSource(Nodes(self.nodes), DECODER, lambda: self.now)
        metrics.nodes_agreed.labels("index").set(7)

    async def _nothing(self, _: bytes) -> tuple[int, bytes]:
        raise AssertionError("asked past its source")

    def tell(self, *answers: Any) -> None:
        for told, answer in zip(self.told, answers, strict=True):
            told.answer = answer

    @property
    def asked(self) -> list[int]:
        """Return the number of requests to each node since the last call."""
        counts = [len(told.asked) for told in self.told]
        for told in self.told:
            told.asked.clear()
        return counts


def gone(name: str = "gone") -> Retryable:
    return Retryable("chain_unreachable", name)


def gauge(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"coordinatord_{name}", labels)


def agreed() -> float | None:
    return metrics.REGISTRY.get_sample_value("coordinatord_nodes_agreed", {"of": "index"})


async def test_one_node_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 31337)
    assert await world.source.chain_id() == 31337
    assert agreed() == 1
    world.tell(gone("alone"))
    for _ in range(5):  # and asked again every time
        with pytest.raises(Retryable, match="alone"):
            await world.source.chain_id()
    assert world.asked == [6]


async def test_two_that_agree_are_enough_and_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, both = World(monkeypatch, 1, 1, 2), anyio.Event()

    async def meet() -> None:
        if sum(len(told.asked) for told in world.told) == 2:
            both.set()
        await both.wait()

    for told in world.told:
        told.meets = meet
    assert await world.source.chain_id() == 1
    assert world.asked == [1, 1, 0]
    assert agreed() == 2


async def test_two_that_differ_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1, 2)
    with pytest.raises(Disagreement, match=r"^n0 and n1 contradict each other about the chain id: waiting"):
        await world.source.chain_id()
    assert agreed() == 0


@pytest.mark.parametrize(("answers", "asked"), [((1, 2, 2, 2), [1, 1, 1, 0]), ((1, gone(), 1, 1), [1, 1, 1, 0])])
async def test_a_third_decides(monkeypatch: pytest.MonkeyPatch, answers: Any, asked: list[int]) -> None:
    world = World(monkeypatch, *answers)
    assert await world.source.chain_id() == answers[2]
    assert world.asked == asked


async def test_fourth_node_decides_between_three(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1, 2, 3, 1)
    assert await world.source.chain_id() == 1
    assert world.asked == [1, 1, 1, 1]


async def test_first_of_several_failures_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1, gone("first"), gone("second"))
    with pytest.raises(Retryable, match="first"):
        await world.source.chain_id()


async def test_where_all_are_left_out_the_first_alone_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, gone(), gone())
    for asked in ([1, 1], [1, 1], [1, 1], [1, 0]):
        with pytest.raises(Retryable, match="gone"):
            await world.source.chain_id()
        assert world.asked == asked


async def test_where_two_are_silent_two_more_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, gone(), gone(), 1, 1, 1)
    assert await world.source.chain_id() == 1
    assert world.asked == [1, 1, 1, 1, 0]


async def test_one_that_does_not_answer_is_waited_for_then_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1, gone("silent"))
    for rest in (10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 300):
        for _ in range(3 if rest == 10 else 1):
            with pytest.raises(Retryable, match="silent"):
                await world.source.chain_id()
        world.asked  # noqa: B018
        world.now += rest - 0.5
        assert await world.source.chain_id() == 1
        assert world.asked == [1, 0]
        world.now += 0.5
    world.tell(1, 1)
    assert await world.source.chain_id() == 1
    world.tell(1, gone("again"))
    for _ in range(3):  # the count starts again
        with pytest.raises(Retryable, match="again"):
            await world.source.chain_id()
    assert await world.source.chain_id() == 1


async def test_a_node_that_is_outvoted_on_one_branch_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, logs("x"), logs("y"), logs("y"))
    assert [str(event) for event in (await world.source.range(1, 2, WIDTH)).events] == ["y"]
    assert [node.is_suspended for node in world.nodes] == [True, False, False]
    assert world.told[1].asked == [("range", 1, 2, WIDTH)]


async def test_node_on_another_branch_is_doubted_after_ten_times(monkeypatch: pytest.MonkeyPatch) -> None:
    stray, here = logs(branch="cc"), logs()
    world = World(monkeypatch, stray, here, here)
    for _ in range(9):
        assert await world.source.range(1, 2, WIDTH) is here
    world.tell(here, here, here)
    await world.source.range(1, 2, WIDTH)
    world.tell(stray, here, here)
    for _ in range(9):
        await world.source.range(1, 2, WIDTH)
    assert not world.nodes[0].is_suspended
    await world.source.range(1, 2, WIDTH)
    assert [node.is_suspended for node in world.nodes] == [True, False, False]


@pytest.mark.parametrize(
    "other",
    [header(2), header(1, "cc"), header(1, parent="cc"), header(1, time=6)],
    ids=["height", "hash", "parent", "time"],
)
async def test_headers_must_agree_in_every_field(monkeypatch: pytest.MonkeyPatch, other: BlockHeader) -> None:
    world = World(monkeypatch, [header(1), header(9)], [other, header(9)])
    with pytest.raises(Disagreement, match="the headers of blocks 1 to 9:"):
        await world.source.headers(1, 9)
    world.tell([header(1, "aa", parent="bb")], [header(1, "AA", parent="BB")])
    assert (await world.source.headers(1, 9))[0].height == 1
    assert world.told[0].asked == [("headers", 1, 9)] * 2


async def test_last_header_identifies_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = [header(1), header(2), header(3)], [header(1), header(2, "cc"), header(3)]
    world = World(monkeypatch, wrong, right, right)
    await world.source.headers(1, 3)
    assert world.nodes[0].is_suspended
    world = World(monkeypatch, [header(1), header(2), header(3, "AA", time=6)], right, right)
    await world.source.headers(1, 3)
    assert world.nodes[0].is_suspended
    world = World(monkeypatch, [header(1), header(2), header(3, "cc")], right, right)
    await world.source.headers(1, 3)
    assert not world.nodes[0].is_suspended


async def test_blocks_must_agree_with_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [logs("x"), logs("y")], [logs("x"), logs("z")])
    with pytest.raises(Disagreement, match="about blocks 1 to 4:"):
        await world.source.blocks(1, 4)
    with_other = BlockRange([header(1), header(2, time=9)], ["x"])  # type: ignore[list-item]
    world.tell([logs("x"), logs("y")], [with_other, logs("y")])
    with pytest.raises(Disagreement):
        await world.source.blocks(1, 4)
    world.tell([logs("x"), logs("y")], [logs("x"), logs("y")])
    assert len(await world.source.blocks(1, 4)) == 2
    assert world.told[0].asked == [("blocks", 1, 4)] * 3


async def test_the_lowest_head_is_the_index_s_once_two_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, header(9), header(8), header(9))

    for told in world.told:
        told.mined = [header(8, "dd")]
    assert (await world.source.head()).hash == "0xdd"
    assert [node.head for node in world.nodes] == [9, 8, 9]
    assert ("headers", 8, 8) in world.told[0].asked


async def test_equal_heads_are_used_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, header(9), header(9))
    assert (await world.source.head()).height == 9
    assert world.asked == [1, 1]
    world.tell(header(9), header(9, "cc"))
    with pytest.raises(Disagreement):
        await world.source.head()
    assert gauge("node_lag_blocks", node="n1") == 0


async def test_resting_and_foreign_nodes_are_not_asked_for_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, header(9), header(9), header(9))
    world.nodes[1].record_failure(3)
    world.nodes[2].serves_other_chain = True
    metrics.node_lag.labels("n0").set(7)
    assert (await world.source.head()).height == 9
    assert world.asked == [1, 0, 0]
    assert gauge("node_lag_blocks", node="n0") == 0


async def test_far_lagging_node_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, header(100), header(80))
    assert (await world.source.head()).height == 100
    assert world.asked == [1, 1]
    world.tell(31337, 31337)
    assert await world.source.chain_id() == 31337
    assert world.asked == [1, 0]


async def test_first_failure_is_reported_without_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, gone("first"), gone("second"))
    with pytest.raises(Retryable, match="first"):
        await world.source.head()
    for node in world.nodes:
        node.record_failure(3)
    with pytest.raises(Retryable, match="no node that is in step with the others answered") as failure:
        await world.source.head()
    assert failure.value.kind == "chain_unreachable"
