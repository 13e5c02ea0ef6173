"""Blocks and logs of several nodes, taken as two of them tell them alike.

One node may lie, lag or sit on another branch. What two tell alike is taken; a third decides between two that differ;
without a third nothing is taken until they agree. One that does not answer is waited for a few times and then left out,
so that the index goes on with those that are left, and with one alone, unchecked, as it would with one address.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.logs import Decoder
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.fetch import RangeWidth, Source
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes

T = TypeVar("T")
log = structlog.get_logger(__name__)

_FAILURES: Final = 3  # in a row, after which a node is no witness for a while
_REST: Final = 10.0  # seconds, doubled each time
_LONGEST_REST: Final = 300.0
_STRAYED: Final = 10  # times in a row on another branch than two others; an honest node is there for a block or two


class Disagreement(Retryable):
    """Nodes told different things, and no two of them the same."""


@attrs.define(eq=False)
class _Witness:
    node: Node
    source: Source
    failures: int = 0
    strayed: int = 0
    rests_until: float = 0.0


@attrs.frozen
class _Told:
    """The part of an answer that nodes must tell alike. `branch`: the hash of its last block."""

    branch: str
    content: object


class CheckedSource:
    """The index's view of several nodes; `Source` is that of one."""

    def __init__(self, nodes: Nodes, decoder: Decoder, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        self._witnesses = {node: _Witness(node, Source(node.rpc, decoder)) for node in nodes.all}

    async def head(self) -> BlockHeader:
        """The lowest head of the nodes that are in step: all of them have that block."""
        heads = await self._heads()
        lowest = min(heads, key=lambda head: head.height)
        if all((head.height, head.hash) == (lowest.height, lowest.hash) for head in heads):
            return lowest
        return (await self.headers(lowest.height, lowest.height))[0]

    async def chain_id(self) -> int:
        return await self._agreed(lambda source: source.chain_id(), lambda found: _Told("", found), "the chain id")

    async def headers(self, first: int, last: int) -> list[BlockHeader]:
        return await self._agreed(
            lambda source: source.headers(first, last), _headers_told, f"the headers of blocks {first} to {last}"
        )

    async def blocks(self, first: int, last: int) -> list[BlockRange]:
        return await self._agreed(
            lambda source: source.blocks(first, last),
            lambda found: _told(*found),
            f"blocks {first} to {last}",
        )

    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange:
        return await self._agreed(
            lambda source: source.range(first, last, width), _told, f"the logs of blocks {first} to {last}"
        )

    async def _heads(self) -> list[BlockHeader]:
        found: dict[Node, BlockHeader] = {}
        failed: list[Retryable] = []

        async def ask(node: Node) -> None:
            try:
                head = await self._witnesses[node].source.head()
            except Retryable as error:
                failed.append(error)
                return
            node.saw_head(head.height)
            found[node] = head

        async with anyio.create_task_group() as tasks:
            for node in self._nodes.all:
                if not (node.resting or node.foreign):
                    tasks.start_soon(ask, node)
        self._nodes.show_lag()
        heads = [found[node] for node in self._nodes.fit() if node in found]
        if not heads:
            raise failed[0] if failed else Retryable("chain_unreachable", "no node that is in step with others answers")
        return heads

    def _present(self) -> list[_Witness]:
        """Nodes to be asked: those that are fit, without those that lately told the index nothing; one at least."""
        fit = [self._witnesses[node] for node in self._nodes.fit()]
        return [witness for witness in fit if witness.rests_until <= self._clock()] or fit[:1]

    async def _agreed(self, ask: Callable[[Source], Awaitable[T]], told: Callable[[T], _Told], what: str) -> T:
        """What two nodes tell alike. `told`: the part of an answer that they must tell alike. Retryable when there are
        two and they do not, or when one of them does not answer."""
        present = self._present()
        if len(present) == 1:
            answer = await self._ask(present[0], ask)
            if isinstance(answer, Retryable):
                raise answer
            metrics.nodes_disagree.labels("index").set(0)
            metrics.nodes_agreed.set(1)
            return answer
        heard: list[tuple[_Witness, T]] = []
        failed: list[Retryable] = []
        waiting = list(present)
        while waiting:
            asked, waiting = waiting[: 1 if heard else 2], waiting[1 if heard else 2 :]
            for witness, answer in await self._ask_all(asked, ask):
                if isinstance(answer, Retryable):
                    failed.append(answer)
                else:
                    heard.append((witness, answer))
            taken = _majority(heard, told)
            if taken is not None:
                self._note_agreement(heard, taken, told, what)
                return taken
        raise _undecided(heard, failed, what)

    def _note_agreement(
        self, heard: Sequence[tuple[_Witness, T]], taken: T, told: Callable[[T], _Told], what: str
    ) -> None:
        metrics.nodes_disagree.labels("index").set(0)
        metrics.nodes_agreed.set(2)
        for witness, answer in heard:
            if told(answer) == told(taken):
                witness.strayed = 0
                continue
            witness.strayed += 1
            if told(answer).branch == told(taken).branch or witness.strayed >= _STRAYED:
                witness.node.doubt(what)

    async def _ask_all(
        self, witnesses: Sequence[_Witness], ask: Callable[[Source], Awaitable[T]]
    ) -> list[tuple[_Witness, T | Retryable]]:
        answers: list[tuple[_Witness, T | Retryable]] = []

        async def one(witness: _Witness) -> None:
            answers.append((witness, await self._ask(witness, ask)))

        async with anyio.create_task_group() as tasks:
            for witness in witnesses:
                tasks.start_soon(one, witness)
        return answers

    async def _ask(self, witness: _Witness, ask: Callable[[Source], Awaitable[T]]) -> T | Retryable:
        try:
            answer = await ask(witness.source)
        except Retryable as error:
            witness.failures += 1
            if witness.failures >= _FAILURES:
                rest = min(_LONGEST_REST, _REST * 2.0 ** min(witness.failures - _FAILURES, 8))
                witness.rests_until = self._clock() + rest
                log.warning("node left out by the index", node=witness.node.name, seconds=rest, reason=error.message)
            return error
        witness.failures = 0
        return answer


def _majority(heard: Sequence[tuple[_Witness, T]], told: Callable[[T], _Told]) -> T | None:
    """The answer that two gave."""
    for place, (_, answer) in enumerate(heard):
        if any(told(answer) == told(other) for _, other in heard[:place]):
            return answer
    return None


def _undecided(heard: Sequence[tuple[_Witness, T]], failed: Sequence[Retryable], what: str) -> Retryable:
    if len(heard) < 2:
        return failed[0]
    metrics.nodes_disagree.labels("index").set(1)
    names = " and ".join(witness.node.name for witness, _ in heard)
    return Disagreement("chain_unreachable", f"{names} contradict each other about {what}: waiting until they agree")


def _headers_told(headers: Sequence[BlockHeader]) -> _Told:
    content = [(header.height, header.hash.lower(), header.parent_hash.lower(), header.time) for header in headers]
    return _Told(headers[-1].hash.lower(), content)


def _told(*ranges: BlockRange) -> _Told:
    headers = _headers_told([header for block_range in ranges for header in block_range.headers])
    return _Told(headers.branch, (headers.content, [placed for block_range in ranges for placed in block_range.events]))
