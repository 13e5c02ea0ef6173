"""Nodes of the chain. Several must agree.

All requests of one `Chain` are about the same block, the lowest of the nodes' heads. Otherwise nodes that are one block
apart would seem to disagree.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import anyio
import attrs

from common.inclusion.node_values import objects, octets, quantity, texts
from common.refusal import Refused
from common.scalars import hex_of
from svc.errors import NodeFailed
from svc.wire.json_rpc import Node, NodeRefusal

T = TypeVar("T")

# Give up if the node rejects even this range.
_MIN_LOG_RANGE_BLOCKS: Final = 500
_MAX_REQUESTS_PER_SEARCH: Final = 64
_MISSING: Final = object()


@attrs.define(eq=False)
class Chain:
    """Answers on which all nodes agree, at one block. Raises NodeFailed if a node does not answer or disagrees."""

    nodes: Sequence[Node]
    _block: int | None = None

    async def head(self) -> int:
        """Return the block of this snapshot: the newest that every node has."""
        if self._block is None:
            self._block = min(await self._each(lambda node: node.quantity("eth_blockNumber")))
        return self._block

    def later(self) -> "Chain":
        """Return the same nodes at a later block."""
        return Chain(self.nodes)

    async def chain_id(self) -> int:
        return await self._agreed("chain id", lambda node: node.quantity("eth_chainId"))

    async def code(self, address: bytes) -> bytes:
        block = hex(await self.head())
        return await self._agreed("code", lambda node: node.octets("eth_getCode", hex_of(address), block))

    async def view(self, contract: bytes, data: bytes) -> bytes:
        """Call a contract. The result is empty if there is no contract."""
        call, block = {"to": hex_of(contract), "data": hex_of(data)}, hex(await self.head())
        return await self._agreed("a contract's answer", lambda node: node.octets("eth_call", call, block))

    async def block_time(self) -> int:
        """Return the Unix time of this snapshot's block."""
        block = await self.head()

        async def time(node: Node) -> int:
            return quantity(await node.block(block), "timestamp")

        return await self._agreed("the time of a block", time)

    async def block_hash(self, number: int) -> bytes:
        async def hash_of(node: Node) -> bytes:
            return octets(await node.block(number), "hash", 32)

        return await self._agreed("the hash of a block", hash_of)

    async def logs(
        self, contract: bytes, topics: Sequence[bytes | None], first: int, ends: Collection[bytes] = ()
    ) -> list[dict[str, Any]]:
        """Return a contract's logs from a block on, up to the first event in `ends`.

        The range is narrowed for nodes that limit it.
        """
        return await self._agreed("logs", lambda node: self._logs(node, contract, topics, first, ends))

    async def _logs(
        self, node: Node, contract: bytes, topics: Sequence[bytes | None], first: int, ends: Collection[bytes]
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        last = await self.head()
        width, requests = max(1, last - first + 1), 0
        while first <= last:
            if requests == _MAX_REQUESTS_PER_SEARCH:
                raise NodeRefusal(
                    f"the node {node.name} would need too many requests for logs: use a node with a larger range limit"
                )
            range_end = min(first + width - 1, last)
            log_filter = {
                "address": hex_of(contract),
                "topics": [None if topic is None else hex_of(topic) for topic in topics],
                "fromBlock": hex(first),
                "toBlock": hex(range_end),
            }
            requests += 1
            try:
                logs = objects({"eth_getLogs": await node.call("eth_getLogs", log_filter)}, "eth_getLogs")
            except NodeRefusal:
                if width <= _MIN_LOG_RANGE_BLOCKS:
                    raise
                width = max(_MIN_LOG_RANGE_BLOCKS, width // 8)
                continue
            for log in map(_log, logs):
                found.append(log)
                if log["topics"][:1] and log["topics"][0] in ends:
                    return found
            first = range_end + 1
        return found

    async def _agreed(self, what: str, ask: Callable[[Node], Awaitable[T]]) -> T:
        answers = await self._each(ask)
        if any(answer != answers[0] for answer in answers):
            names = ", ".join(node.name for node in self.nodes)
            raise NodeFailed(f"the nodes {names} disagree about {what}: find out which node is wrong")
        return answers[0]

    async def _each(self, ask: Callable[[Node], Awaitable[T]]) -> list[T]:
        answers: list[Any] = [_MISSING] * len(self.nodes)
        failed: list[NodeFailed] = []

        async def fill(at: int, node: Node) -> None:
            try:
                answers[at] = await ask(node)
            except NodeFailed as trouble:
                failed.append(trouble)
            except Refused as odd:
                failed.append(NodeFailed(f"the node {node.name}: {odd.message}", retryable=False))

        async with anyio.create_task_group() as tasks:
            for at, node in enumerate(self.nodes):
                tasks.start_soon(fill, at, node)
        if failed:
            raise failed[0]
        return answers


def _log(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that all nodes report. Some nodes add other fields."""
    return {
        "address": octets(log, "address", 20),
        "topics": texts(log, "topics", 32),
        "data": octets(log, "data"),
        "block": quantity(log, "blockNumber"),
        "block_hash": octets(log, "blockHash", 32),
        "transaction": octets(log, "transactionHash", 32),
    }
