"""Nodes of the chain. Several must agree.

All questions of one sitting are about one block, the lowest of the nodes' heads, so that nodes which are a block apart
do not seem to disagree.
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

_NARROWEST: Final = 500  # blocks of logs: a node that refuses even so few is asked no further
_MOST_QUESTIONS: Final = 64  # about logs, in narrower and narrower ranges
_MISSING: Final = object()


@attrs.define(eq=False)
class Chain:
    """The common word of all nodes, at one block. `NodeFailed` where any is silent or says something else."""

    nodes: Sequence[Node]
    _block: int | None = None

    async def head(self) -> int:
        """The block of this sitting: the latest that every node has."""
        if self._block is None:
            self._block = min(await self._each(lambda node: node.quantity("eth_blockNumber")))
        return self._block

    def later(self) -> "Chain":
        """The same nodes in another sitting, at a later block."""
        return Chain(self.nodes)

    async def chain_id(self) -> int:
        return await self._agreed("chain id", lambda node: node.quantity("eth_chainId"))

    async def code(self, address: bytes) -> bytes:
        block = hex(await self.head())
        return await self._agreed("code", lambda node: node.octets("eth_getCode", hex_of(address), block))

    async def view(self, contract: bytes, data: bytes) -> bytes:
        """A contract's answer to a call; nothing where there is no contract."""
        call, block = {"to": hex_of(contract), "data": hex_of(data)}, hex(await self.head())
        return await self._agreed("a contract's answer", lambda node: node.octets("eth_call", call, block))

    async def block_time(self) -> int:
        """Unix seconds of the block of this sitting."""
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
        """A contract's logs from a block on, as far as the first of the events `ends`. Nodes that take narrow ranges
        alone are asked for those."""
        return await self._agreed("logs", lambda node: self._logs(node, contract, topics, first, ends))

    async def _logs(
        self, node: Node, contract: bytes, topics: Sequence[bytes | None], first: int, ends: Collection[bytes]
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        last = await self.head()
        width, questions = max(1, last - first + 1), 0
        while first <= last:
            if questions == _MOST_QUESTIONS:
                raise NodeRefusal(f"the node {node.name} would have to be asked for too many ranges of logs")
            until = min(first + width - 1, last)
            wanted = {
                "address": hex_of(contract),
                "topics": [None if topic is None else hex_of(topic) for topic in topics],
                "fromBlock": hex(first),
                "toBlock": hex(until),
            }
            questions += 1
            try:
                logs = objects({"eth_getLogs": await node.call("eth_getLogs", wanted)}, "eth_getLogs")
            except NodeRefusal:
                if width <= _NARROWEST:
                    raise
                width = max(_NARROWEST, width // 8)
                continue
            for log in map(_log, logs):
                found.append(log)
                if log["topics"][:1] and log["topics"][0] in ends:
                    return found
            first = until + 1
        return found

    async def _agreed(self, what: str, ask: Callable[[Node], Awaitable[T]]) -> T:
        answers = await self._each(ask)
        if any(answer != answers[0] for answer in answers):
            names = ", ".join(node.name for node in self.nodes)
            raise NodeFailed(f"the nodes {names} disagree about {what}: find out which of them errs")
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
    """The fields of a log that all nodes tell alike; some add others of their own."""
    return {
        "address": octets(log, "address", 20),
        "topics": texts(log, "topics", 32),
        "data": octets(log, "data"),
        "block": quantity(log, "blockNumber"),
        "block_hash": octets(log, "blockHash", 32),
        "transaction": octets(log, "transactionHash", 32),
    }
