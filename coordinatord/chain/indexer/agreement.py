"""Read blocks and logs from several nodes, and accept only answers that two of them agree on.

A node may lie, lag or follow another branch. When the first two nodes differ, a third decides. Without a third node the
read fails until the two agree. A node that does not answer is retried a few times and then skipped for a while. The
index continues with the remaining nodes. A single node's answers are accepted unchecked, as with one configured URL.
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
from coordinatord.chain.indexer.fetch import NodeSource, RangeWidth
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes

T = TypeVar("T")
log = structlog.get_logger(__name__)

_MAX_FAILURES: Final = 3
_INITIAL_REST_S: Final = 10.0
_MAX_REST_S: Final = 300.0
# Consecutive answers from another branch than two other nodes. An honest node leaves a branch after a block or two.
_MAX_STRAYED_ANSWERS: Final = 10


class Disagreement(Retryable):
    """The nodes gave different answers, and no two of them were equal."""


@attrs.define(eq=False)
class _Witness:
    node: Node
    source: NodeSource
    failures: int = 0
    strayed: int = 0
    rests_until: float = 0.0


@attrs.frozen
class _Comparable:
    """Part of an answer that nodes must agree on. `branch` is the hash of the last block."""

    branch: str
    content: object


class CheckedSource:
    """Block source that cross-checks several nodes. `NodeSource` reads a single node."""

    def __init__(self, nodes: Nodes, decoder: Decoder, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        self._witnesses = {node: _Witness(node, NodeSource(node.rpc, decoder)) for node in nodes.all}

    async def head(self) -> BlockHeader:
        """Return the lowest head of the nodes in step. All of these nodes have that block."""
        heads = await self._heads()
        lowest = min(heads, key=lambda head: head.height)
        if all((head.height, head.hash) == (lowest.height, lowest.hash) for head in heads):
            return lowest
        return (await self.headers(lowest.height, lowest.height))[0]

    async def chain_id(self) -> int:
        return await self._agreed(
            lambda source: source.chain_id(), lambda found: _Comparable("", found), "the chain id"
        )

    async def headers(self, first: int, last: int) -> list[BlockHeader]:
        return await self._agreed(
            lambda source: source.headers(first, last), _comparable_headers, f"the headers of blocks {first} to {last}"
        )

    async def blocks(self, first: int, last: int) -> list[BlockRange]:
        return await self._agreed(
            lambda source: source.blocks(first, last),
            lambda found: _comparable(*found),
            f"blocks {first} to {last}",
        )

    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange:
        return await self._agreed(
            lambda source: source.range(first, last, width), _comparable, f"the logs of blocks {first} to {last}"
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
        """Return the fit nodes that are not resting after failures, and at least one node."""
        fit = [self._witnesses[node] for node in self._nodes.fit()]
        return [witness for witness in fit if witness.rests_until <= self._clock()] or fit[:1]

    async def _agreed(self, ask: Callable[[NodeSource], Awaitable[T]], key: Callable[[T], _Comparable], what: str) -> T:
        """Return the answer that two nodes agree on. `key` extracts the part of an answer that must be equal.

        Raise Retryable when several nodes are present but no two give the same answer.
        """
        present = self._present()
        if len(present) == 1:
            answer = await self._ask(present[0], ask)
            if isinstance(answer, Retryable):
                raise answer
            metrics.nodes_agreed.labels("index").set(1)
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
            taken = _majority(heard, key)
            if taken is not None:
                self._note_agreement(heard, taken, key, what)
                return taken
        raise _undecided(heard, failed, what)

    def _note_agreement(
        self, heard: Sequence[tuple[_Witness, T]], taken: T, key: Callable[[T], _Comparable], what: str
    ) -> None:
        metrics.nodes_agreed.labels("index").set(2)
        for witness, answer in heard:
            if key(answer) == key(taken):
                witness.strayed = 0
                continue
            witness.strayed += 1
            if key(answer).branch == key(taken).branch or witness.strayed >= _MAX_STRAYED_ANSWERS:
                witness.node.doubt(what)

    async def _ask_all(
        self, witnesses: Sequence[_Witness], ask: Callable[[NodeSource], Awaitable[T]]
    ) -> list[tuple[_Witness, T | Retryable]]:
        answers: list[tuple[_Witness, T | Retryable]] = []

        async def one(witness: _Witness) -> None:
            answers.append((witness, await self._ask(witness, ask)))

        async with anyio.create_task_group() as tasks:
            for witness in witnesses:
                tasks.start_soon(one, witness)
        return answers

    async def _ask(self, witness: _Witness, ask: Callable[[NodeSource], Awaitable[T]]) -> T | Retryable:
        try:
            answer = await ask(witness.source)
        except Retryable as error:
            witness.failures += 1
            if witness.failures >= _MAX_FAILURES:
                rest = min(_MAX_REST_S, _INITIAL_REST_S * 2.0 ** min(witness.failures - _MAX_FAILURES, 8))
                witness.rests_until = self._clock() + rest
                log.warning("node left out by the index", node=witness.node.name, seconds=rest, reason=error.message)
            return error
        witness.failures = 0
        return answer


def _majority(heard: Sequence[tuple[_Witness, T]], key: Callable[[T], _Comparable]) -> T | None:
    """Return the answer that two nodes gave, or None."""
    for place, (_, answer) in enumerate(heard):
        if any(key(answer) == key(other) for _, other in heard[:place]):
            return answer
    return None


def _undecided(heard: Sequence[tuple[_Witness, T]], failed: Sequence[Retryable], what: str) -> Retryable:
    if len(heard) < 2:
        return failed[0]
    metrics.nodes_agreed.labels("index").set(0)
    names = " and ".join(witness.node.name for witness, _ in heard)
    return Disagreement("chain_unreachable", f"{names} contradict each other about {what}: waiting until they agree")


def _comparable_headers(headers: Sequence[BlockHeader]) -> _Comparable:
    content = [(header.height, header.hash.lower(), header.parent_hash.lower(), header.time) for header in headers]
    return _Comparable(headers[-1].hash.lower(), content)


def _comparable(*ranges: BlockRange) -> _Comparable:
    headers = _comparable_headers([header for block_range in ranges for header in block_range.headers])
    return _Comparable(
        headers.branch, (headers.content, [placed for block_range in ranges for placed in block_range.events])
    )
