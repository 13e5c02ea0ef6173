"""Nodes of one chain: the state of each, which of them are fit to be asked, and failover between them.

nodes = Nodes([Node(...), Node(...)], lag_blocks=5)
Rpc(nodes.transport())          each request to the first fit node, and to the next when it does not answer
PinnedRpc(nodes)                one node for as long as it is fit; the others as witnesses (`pinned_rpc.py`)

A node is known by host and port: the rest of its address may be a key.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec

from coordinatord.base import metrics
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Transport, open_transport
from coordinatord.chain.rpc.errors import read_error
from coordinatord.chain.rpc.node import Node, turned_away

_TRIES: Final = 4
_PAUSE: Final = 0.25  # seconds: a node that is a block behind has it by then


class Nodes:
    """The nodes, in the operator's order."""

    def __init__(self, nodes: Sequence[Node], *, lag_blocks: int = 5) -> None:
        self.all = tuple(nodes)
        self._lag_blocks = lag_blocks

    @property
    def reference(self) -> int | None:
        """The head that the others are held against: the middle one of those that are there, the higher one of two.
        Two cannot outvote each other."""
        heads = sorted(node.head for node in self.all if node.head is not None and self._serves(node))
        return heads[len(heads) // 2] if heads else None

    def fit(self) -> list[Node]:
        """Nodes that may be asked: there, of this chain, not contradicted, and in step with the others. Those that
        failed last come last. Any node before none."""
        reference = self.reference
        fit = [node for node in self.all if self._serves(node) and self._in_step(node, reference)]
        return sorted(fit or [node for node in self.all if not node.foreign], key=lambda node: node.failing)

    def _serves(self, node: Node) -> bool:
        return not (node.away or node.foreign or node.doubted)

    def _in_step(self, node: Node, reference: int | None) -> bool:
        return reference is None or node.head is None or abs(node.head - reference) <= self._lag_blocks

    def transport(self, *, for_callers: bool = False) -> Transport:
        """To the first fit node, and on to the next while one does not answer or turns us away. Reads, and bytes that
        are signed: what a node did before its answer was lost may be asked of the next again."""

        async def post(body: bytes) -> tuple[int, bytes]:
            lost: NoResponse | None = None
            refusal: tuple[int, bytes] | None = None
            for node in self.fit():
                try:
                    status, answer = await (node.callers if for_callers else node.own)(body)
                except NoResponse as error:
                    lost = error
                    continue
                if not turned_away(status, answer):
                    return status, answer
                refusal = status, answer
            if refusal is not None:
                return refusal
            raise lost or NoResponse("no node of this chain is configured")

        return post

    def agreed_transport(self) -> Transport:
        """For what must not be taken on one node's word: an answer that two fit nodes give alike. Of two that differ a
        third decides; without one they are asked again, as one may be a block behind. One alone is believed."""

        async def post(body: bytes) -> tuple[int, bytes]:
            for _ in range(_TRIES):
                heard: list[tuple[int, bytes]] = []
                for node in self.fit():
                    try:
                        status, answer = await node.callers(body)
                    except NoResponse:
                        continue
                    if turned_away(status, answer):
                        continue
                    if any(_same(answer, other) for _, other in heard):
                        return status, answer
                    heard.append((status, answer))
                if len(heard) == 1:
                    return heard[0]
                if not heard:
                    raise NoResponse("no node answers")
                await anyio.sleep(_PAUSE)
            raise NoResponse("nodes contradict each other")

        return post

    async def look(self, chain_id: int) -> None:
        """The heads of all nodes, as far as they answer."""
        async with anyio.create_task_group() as tasks:
            for node in self.all:
                tasks.start_soon(node.look, chain_id)
        self.show_lag()

    def show_lag(self) -> None:
        reference = self.reference
        for node in self.all:
            if node.head is not None and reference is not None:
                metrics.node_lag.labels(node.name).set(reference - node.head)

    async def watch(self, chain_id: int, pause: float) -> None:
        """Look at every node, again and again. For two and more: one is known by the requests that it gets."""
        while True:
            await self.look(chain_id)
            await anyio.sleep(pause)


def _same(one: bytes, other: bytes) -> bool:
    """True for answers of the same results and reverts; errors have each node's own words."""
    try:
        return one == other or _told(one) == _told(other)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _told(answer: bytes) -> dict[object, object]:
    decoded = msgspec.json.decode(answer)
    calls = decoded if isinstance(decoded, list) else [decoded]
    found: dict[object, object] = {}
    for call in calls:
        if isinstance(call, dict):
            error = call.get("error")
            found[str(call.get("id"))] = read_error(error).data if isinstance(error, dict) else call.get("result")
    return found


def node_names(urls: Sequence[str]) -> list[str]:
    """Host and port of each, told apart by a number where they are the same."""
    names: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        name = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        same = sum(1 for other in names if other.partition("#")[0] == name)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


@asynccontextmanager
async def open_nodes(
    urls: Sequence[str], *, connections: int = 8, for_callers: int = 32, lag_blocks: int = 5, patience: float = 10.0
) -> AsyncIterator[Nodes]:
    """`for_callers`: connections kept apart, so that what callers ask is not in the way of the daemon's own work."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name, url in zip(node_names(urls), urls, strict=True):
            own = await stack.enter_async_context(open_transport(url, connections=connections, patience=patience))
            callers = await stack.enter_async_context(open_transport(url, connections=for_callers, patience=patience))
            nodes.append(Node(name, own, callers))
        yield Nodes(nodes, lag_blocks=lag_blocks)
