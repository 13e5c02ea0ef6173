"""Read blocks and logs from several nodes, and accept only answers that two of them agree on.

A node may lie, lag or follow another branch. When the first two nodes differ, a third decides. Without a third node the
read fails until the two agree. A node that does not answer is retried a few times and then skipped for a while. The
index continues with the remaining nodes. If only one node is left, its answers are accepted unchecked, as with a single
configured URL.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
import attrs
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.fetch import NodeSource, RangeWidth
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes

T = TypeVar("T")
log = structlog.get_logger(__name__)

_MAX_FAILURES: Final = 3
_INITIAL_SKIP_DURATION_S: Final = 10.0
_MAX_SKIP_DURATION_S: Final = 300.0
# A node counts as contradicted after this many consecutive answers from a branch other than that of two agreeing nodes.
# An honest node soon returns to the common branch.
_MAX_OFF_BRANCH_ANSWERS: Final = 10


class Disagreement(Retryable):
    """The nodes gave different answers, and no two of them were equal."""


@attrs.define(eq=False)
class _Witness:
    """Node that the index reads, with its recent failures and contradicted answers."""

    node: Node
    source: NodeSource
    failures: int = 0
    off_branch_answers: int = 0
    skipped_until: float = 0.0


@attrs.frozen
class _Comparable:
    """The content of an answer that nodes must agree on. `branch` is the hash of the answer's last block."""

    branch: str
    content: object


class CheckedSource:
    """Block source that cross-checks several nodes. `NodeSource` reads a single node."""

    def __init__(self, nodes: Nodes, decoder: LogDecoder, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        self._witnesses = {node: _Witness(node, NodeSource(node.rpc, decoder)) for node in nodes.all}

    async def head(self) -> BlockHeader:
        """Return the lowest head of the usable nodes, because all of them have a block at that height."""
        heads = await self._read_heads()
        lowest = min(heads, key=lambda head: head.height)
        if all((head.height, head.hash) == (lowest.height, lowest.hash) for head in heads):
            return lowest
        return (await self.headers(lowest.height, lowest.height))[0]

    async def chain_id(self) -> int:
        return await self._read_agreed(
            lambda source: source.chain_id(), lambda found: _Comparable("", found), "the chain id"
        )

    async def headers(self, first: int, last: int) -> list[BlockHeader]:
        return await self._read_agreed(
            lambda source: source.headers(first, last), _comparable_headers, f"the headers of blocks {first} to {last}"
        )

    async def blocks(self, first: int, last: int) -> list[BlockRange]:
        return await self._read_agreed(
            lambda source: source.blocks(first, last),
            lambda found: _comparable_ranges(*found),
            f"blocks {first} to {last}",
        )

    async def range(self, first: int, last: int, width: RangeWidth) -> BlockRange:
        return await self._read_agreed(
            lambda source: source.range(first, last, width), _comparable_ranges, f"the logs of blocks {first} to {last}"
        )

    async def _read_heads(self) -> list[BlockHeader]:
        found: dict[Node, BlockHeader] = {}
        failed: list[Retryable] = []

        async def read_head(node: Node) -> None:
            try:
                head = await self._witnesses[node].source.head()
            except Retryable as error:
                failed.append(error)
                return
            node.record_head(head.height)
            found[node] = head

        async with anyio.create_task_group() as tasks:
            for node in self._nodes.all:
                if not (node.is_skipped or node.serves_other_chain):
                    tasks.start_soon(read_head, node)
        self._nodes.record_lag()
        heads = [found[node] for node in self._nodes.fit_nodes() if node in found]
        if not heads:
            raise (
                failed[0]
                if failed
                else Retryable("chain_unreachable", "no node that is in step with the others answered")
            )
        return heads

    def _available_witnesses(self) -> list[_Witness]:
        """Return the nodes to read: those that `Nodes.fit_nodes` returns, without nodes that are skipped after
        failures. If all are skipped, return the first."""
        fit = [self._witnesses[node] for node in self._nodes.fit_nodes()]
        return [witness for witness in fit if witness.skipped_until <= self._clock()] or fit[:1]

    async def _read_agreed(
        self, read: Callable[[NodeSource], Awaitable[T]], to_comparable: Callable[[T], _Comparable], subject: str
    ) -> T:
        """Return the answer that two nodes agree on. `to_comparable` extracts the part of an answer that must be equal.

        Raise Retryable when several nodes are present but no two give the same answer.
        """
        available = self._available_witnesses()
        if len(available) == 1:
            answer = await self._read_from(available[0], read)
            if isinstance(answer, Retryable):
                raise answer
            metrics.nodes_agreed.labels("index").set(1)
            return answer
        answers: list[tuple[_Witness, T]] = []
        failed: list[Retryable] = []
        waiting = list(available)
        while waiting:
            queried, waiting = waiting[: 1 if answers else 2], waiting[1 if answers else 2 :]
            for witness, answer in await self._read_from_all(queried, read):
                if isinstance(answer, Retryable):
                    failed.append(answer)
                else:
                    answers.append((witness, answer))
            agreed = _find_agreed_answer(answers, to_comparable)
            if agreed is not None:
                self._record_agreement(answers, agreed, to_comparable, subject)
                return agreed
        raise _disagreement_error(answers, failed, subject)

    def _record_agreement(
        self, answers: Sequence[tuple[_Witness, T]], agreed: T, to_comparable: Callable[[T], _Comparable], subject: str
    ) -> None:
        metrics.nodes_agreed.labels("index").set(2)
        for witness, answer in answers:
            if to_comparable(answer) == to_comparable(agreed):
                witness.off_branch_answers = 0
                continue
            witness.off_branch_answers += 1
            if (
                to_comparable(answer).branch == to_comparable(agreed).branch
                or witness.off_branch_answers >= _MAX_OFF_BRANCH_ANSWERS
            ):
                witness.node.suspend(subject)

    async def _read_from_all(
        self, witnesses: Sequence[_Witness], read: Callable[[NodeSource], Awaitable[T]]
    ) -> list[tuple[_Witness, T | Retryable]]:
        answers: list[tuple[_Witness, T | Retryable]] = []

        async def read_one(witness: _Witness) -> None:
            answers.append((witness, await self._read_from(witness, read)))

        async with anyio.create_task_group() as tasks:
            for witness in witnesses:
                tasks.start_soon(read_one, witness)
        return answers

    async def _read_from(self, witness: _Witness, read: Callable[[NodeSource], Awaitable[T]]) -> T | Retryable:
        try:
            answer = await read(witness.source)
        except Retryable as error:
            witness.failures += 1
            if witness.failures >= _MAX_FAILURES:
                pause_s = min(
                    _MAX_SKIP_DURATION_S, _INITIAL_SKIP_DURATION_S * 2.0 ** min(witness.failures - _MAX_FAILURES, 8)
                )
                witness.skipped_until = self._clock() + pause_s
                log.warning("node skipped by the index", node=witness.node.name, seconds=pause_s, reason=error.message)
            return error
        witness.failures = 0
        return answer


def _find_agreed_answer(answers: Sequence[tuple[_Witness, T]], to_comparable: Callable[[T], _Comparable]) -> T | None:
    """Return the answer that two nodes gave, or None."""
    for index, (_, answer) in enumerate(answers):
        if any(to_comparable(answer) == to_comparable(other) for _, other in answers[:index]):
            return answer
    return None


def _disagreement_error(answers: Sequence[tuple[_Witness, T]], failed: Sequence[Retryable], subject: str) -> Retryable:
    if len(answers) < 2:
        return failed[0]
    metrics.nodes_agreed.labels("index").set(0)
    names = " and ".join(witness.node.name for witness, _ in answers)
    return Disagreement(
        "chain_unreachable", f"{names} contradict each other about {subject}: waiting until two nodes agree"
    )


def _comparable_headers(headers: Sequence[BlockHeader]) -> _Comparable:
    content = [(header.height, header.hash.lower(), header.parent_hash.lower(), header.time) for header in headers]
    return _Comparable(headers[-1].hash.lower(), content)


def _comparable_ranges(*ranges: BlockRange) -> _Comparable:
    headers = _comparable_headers([header for block_range in ranges for header in block_range.headers])
    return _Comparable(
        headers.branch, (headers.content, [placed for block_range in ranges for placed in block_range.events])
    )
