"""Nodes of one chain, and failover between them.

nodes = Nodes([Node(...), Node(...)], max_lag_blocks=5)
Rpc(nodes.transport())          sends each request to the first fit node, and to the next if the first does not answer
PinnedRpc(nodes)                uses one node while it is fit, and the others as witnesses (`pinned.py`)

A node is named by host and port, because the rest of its URL may contain a key.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec

from common.strict_json import DECODE_ERRORS
from coordinatord.base import metrics
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Transport, open_transport
from coordinatord.chain.rpc.errors import classify_error
from coordinatord.chain.rpc.node import Node, rejects_client

_MAX_ATTEMPTS: Final = 4
# A node one block behind catches up within this time.
_RETRY_PAUSE_S: Final = 0.25


class Nodes:
    """Nodes of one chain, in the operator's order."""

    def __init__(self, nodes: Sequence[Node], *, max_lag_blocks: int = 5) -> None:
        self.all = tuple(nodes)
        self._max_lag_blocks = max_lag_blocks

    @property
    def reference_head(self) -> int | None:
        """Head that all nodes are compared with: the median head of the usable nodes, or the higher of two."""
        heads = sorted(node.head for node in self.all if node.head is not None and self._is_usable(node))
        return heads[len(heads) // 2] if heads else None

    def fit_nodes(self) -> list[Node]:
        """Return the fit nodes: reachable, on this chain, not contradicted and in step with the others.

        Nodes whose last request failed come last. If no node is fit, return all nodes of this chain.
        """
        reference = self.reference_head
        fit = [node for node in self.all if self._is_usable(node) and self._is_in_step(node, reference)]
        return sorted(
            fit or [node for node in self.all if not node.serves_other_chain], key=lambda node: node.is_failing
        )

    def _is_usable(self, node: Node) -> bool:
        return not (node.is_unreachable or node.serves_other_chain or node.is_suspended)

    def _is_in_step(self, node: Node, reference: int | None) -> bool:
        return reference is None or node.head is None or abs(node.head - reference) <= self._max_lag_blocks

    def transport(self, *, for_clients: bool = False) -> Transport:
        """Return a transport to the first fit node, with failover to the next.

        Fail over when a node does not answer or rejects the client. Use this transport for reads and signed bytes only,
        which are safe to repeat.
        """

        async def post(body: bytes) -> tuple[int, bytes]:
            no_response: NoResponse | None = None
            rejection: tuple[int, bytes] | None = None
            for node in self.fit_nodes():
                try:
                    status, answer = await (node.client_transport if for_clients else node.daemon_transport)(body)
                except NoResponse as error:
                    no_response = error
                    continue
                if not rejects_client(status, answer):
                    return status, answer
                rejection = status, answer
            if rejection is not None:
                return rejection
            raise no_response or NoResponse("no node of this chain is configured")

        return post

    def agreed_transport(self) -> Transport:
        """Return a transport that requires the same answer from two fit nodes.

        A third node decides between two that differ. Without a third, both are read again, because one of them may be a
        block behind. If only one node answers, its answer is accepted.
        """

        async def post(body: bytes) -> tuple[int, bytes]:
            for _ in range(_MAX_ATTEMPTS):
                answers: list[tuple[int, bytes]] = []
                for node in self.fit_nodes():
                    try:
                        status, answer = await node.client_transport(body)
                    except NoResponse:
                        continue
                    if rejects_client(status, answer):
                        continue
                    if any(_same_answer(answer, other) for _, other in answers):
                        return status, answer
                    answers.append((status, answer))
                if len(answers) == 1:
                    return answers[0]
                if not answers:
                    raise NoResponse("no node of this chain answers")
                await anyio.sleep(_RETRY_PAUSE_S)
            raise NoResponse("nodes contradict each other: no two gave the same answer")

        return post

    async def read_heads(self, chain_id: int) -> None:
        """Read the heads of all nodes that answer."""
        async with anyio.create_task_group() as tasks:
            for node in self.all:
                tasks.start_soon(node.read_head, chain_id)
        self.record_lag()

    def record_lag(self) -> None:
        reference = self.reference_head
        for node in self.all:
            if node.head is not None and reference is not None:
                metrics.node_lag.labels(node.name).set(reference - node.head)

    async def watch_heads(self, chain_id: int, pause_s: float) -> None:
        """Read the heads of all nodes repeatedly. Needed only with several nodes, whose heads are compared."""
        while True:
            await self.read_heads(chain_id)
            await anyio.sleep(pause_s)


def _same_answer(first: bytes, other: bytes) -> bool:
    """Return True when both answers have the same results and revert data. Error messages differ between nodes."""
    try:
        return first == other or _comparable_results(first) == _comparable_results(other)
    except DECODE_ERRORS:
        return False


def _comparable_results(answer: bytes) -> dict[object, object]:
    decoded = msgspec.json.decode(answer)
    calls = decoded if isinstance(decoded, list) else [decoded]
    results: dict[object, object] = {}
    for call in calls:
        if isinstance(call, dict):
            error = call.get("error")
            results[str(call.get("id"))] = classify_error(error).data if isinstance(error, dict) else call.get("result")
    return results


def node_names(urls: Sequence[str]) -> list[str]:
    """Return host and port of each URL, with a number appended to duplicates."""
    names: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        name = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        same = sum(1 for other in names if other.partition("#")[0] == name)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


@asynccontextmanager
async def open_nodes(
    urls: Sequence[str],
    *,
    connections: int = 8,
    client_connections: int = 32,
    max_lag_blocks: int = 5,
    timeout_s: float = 10.0,
) -> AsyncIterator[Nodes]:
    """Open all nodes. Requests of API clients use separate connections, `client_connections` per node, so that they do
    not delay the daemon's work."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name, url in zip(node_names(urls), urls, strict=True):
            daemon_transport = await stack.enter_async_context(
                open_transport(url, connections=connections, timeout_s=timeout_s)
            )
            client_transport = await stack.enter_async_context(
                open_transport(url, connections=client_connections, timeout_s=timeout_s)
            )
            nodes.append(Node(name, daemon_transport, client_transport))
        yield Nodes(nodes, max_lag_blocks=max_lag_blocks)
