"""Read the chain from one or more nodes, which must agree.

Each `Chain` reads the state at a fixed block: the newest block that every node has. Without a fixed block, nodes that
are one block apart would disagree.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import anyio
import attrs

from common.inclusion.node_values import read_bytes, read_bytes_list, read_objects, read_quantity
from common.refusal import Refused
from common.scalars import hex_of
from svc.errors import NodeFailed
from svc.wire.json_rpc import Node, NodeRefusal

T = TypeVar("T")

# Smallest range of blocks in a request for logs. If a node rejects even this range, the search fails.
_MIN_LOG_RANGE_BLOCKS: Final = 500
_MAX_REQUESTS_PER_SEARCH: Final = 64
_MISSING: Final = object()


@attrs.define(eq=False)
class Chain:
    """Snapshot of the chain at one block. Raises NodeFailed if a node fails, or if the nodes disagree."""

    nodes: Sequence[Node]
    _snapshot_block: int | None = None

    async def head(self) -> int:
        """Return the number of this snapshot's block, the newest block that every node has."""
        if self._snapshot_block is None:
            self._snapshot_block = min(await self._query_each_node(lambda node: node.call_quantity("eth_blockNumber")))
        return self._snapshot_block

    def new_snapshot(self) -> "Chain":
        """Return a new snapshot of the same nodes, at their current head."""
        return Chain(self.nodes)

    async def chain_id(self) -> int:
        return await self._require_same_answer("chain id", lambda node: node.call_quantity("eth_chainId"))

    async def code(self, address: bytes) -> bytes:
        block = hex(await self.head())
        return await self._require_same_answer(
            "code", lambda node: node.call_octets("eth_getCode", hex_of(address), block)
        )

    async def call_view(self, contract: bytes, data: bytes) -> bytes:
        """Return the result of a read-only contract call, or empty bytes if the address has no contract."""
        call, block = {"to": hex_of(contract), "data": hex_of(data)}, hex(await self.head())
        return await self._require_same_answer(
            "the result of a contract call", lambda node: node.call_octets("eth_call", call, block)
        )

    async def block_time(self) -> int:
        """Return the Unix time of this snapshot's block."""
        block = await self.head()

        async def read_block_time(node: Node) -> int:
            return read_quantity(await node.block(block), "timestamp")

        return await self._require_same_answer("the time of a block", read_block_time)

    async def block_hash(self, number: int) -> bytes:
        async def read_block_hash(node: Node) -> bytes:
            return read_bytes(await node.block(number), "hash", 32)

        return await self._require_same_answer("the hash of a block", read_block_hash)

    async def logs(
        self, contract: bytes, topics: Sequence[bytes | None], first_block: int, end_topics: Collection[bytes] = ()
    ) -> list[dict[str, Any]]:
        """Return a contract's logs since `first_block`, up to the first event whose topic is in `end_topics`.

        If a node rejects a range of blocks, the search continues with a smaller range.
        """
        return await self._require_same_answer(
            "logs", lambda node: self._read_node_logs(node, contract, topics, first_block, end_topics)
        )

    async def _read_node_logs(
        self,
        node: Node,
        contract: bytes,
        topics: Sequence[bytes | None],
        first_block: int,
        end_topics: Collection[bytes],
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        last = await self.head()
        width, requests = max(1, last - first_block + 1), 0
        while first_block <= last:
            if requests == _MAX_REQUESTS_PER_SEARCH:
                raise NodeRefusal(
                    f"the node {node.name} allows only small block ranges, so a search for events would need more than"
                    f" {_MAX_REQUESTS_PER_SEARCH} requests: use another node"
                )
            range_end = min(first_block + width - 1, last)
            log_filter = {
                "address": hex_of(contract),
                "topics": [None if topic is None else hex_of(topic) for topic in topics],
                "fromBlock": hex(first_block),
                "toBlock": hex(range_end),
            }
            requests += 1
            try:
                logs = read_objects({"eth_getLogs": await node.call("eth_getLogs", log_filter)}, "eth_getLogs")
            except NodeRefusal:
                if width <= _MIN_LOG_RANGE_BLOCKS:
                    raise
                width = max(_MIN_LOG_RANGE_BLOCKS, width // 8)
                continue
            for log in map(_common_log_fields, logs):
                found.append(log)
                if log["topics"][:1] and log["topics"][0] in end_topics:
                    return found
            first_block = range_end + 1
        return found

    async def _require_same_answer(self, fact: str, query: Callable[[Node], Awaitable[T]]) -> T:
        answers = await self._query_each_node(query)
        if any(answer != answers[0] for answer in answers):
            names = ", ".join(node.name for node in self.nodes)
            raise NodeFailed(f"the nodes {names} disagree about {fact}: remove the node that is wrong from SVC_RPC_URL")
        return answers[0]

    async def _query_each_node(self, query: Callable[[Node], Awaitable[T]]) -> list[T]:
        answers: list[Any] = [_MISSING] * len(self.nodes)
        failed: list[NodeFailed] = []

        async def query_node(at: int, node: Node) -> None:
            try:
                answers[at] = await query(node)
            except NodeFailed as error:
                failed.append(error)
            except Refused as malformed:
                failed.append(NodeFailed(f"the node {node.name}: {malformed.message}", retryable=False))

        async with anyio.create_task_group() as tasks:
            for at, node in enumerate(self.nodes):
                tasks.start_soon(query_node, at, node)
        if failed:
            raise failed[0]
        return answers


def _common_log_fields(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the log fields that all nodes report, so that logs from different nodes can be compared."""
    return {
        "address": read_bytes(log, "address", 20),
        "topics": read_bytes_list(log, "topics", 32),
        "data": read_bytes(log, "data"),
        "block": read_quantity(log, "blockNumber"),
        "block_hash": read_bytes(log, "blockHash", 32),
        "transaction": read_bytes(log, "transactionHash", 32),
    }
