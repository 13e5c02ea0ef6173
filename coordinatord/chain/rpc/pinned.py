"""Make all reads of one decision from the same node, when there are several nodes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.node import MAX_FAILURES, Node
from coordinatord.chain.rpc.nodes import Nodes

log = structlog.get_logger(__name__)


class PinnedRpc(Rpc):
    """Sends every request to one node while the node is fit, and changes nodes only between decisions.

    So nonces, receipts and simulations of one decision are consistent. The tasks of a relayer share one instance.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(self._send_to_node)
        self._nodes = nodes
        self._node = nodes.fit_nodes()[0]
        self._failures = 0
        self._running_decisions = 0
        self._idle = anyio.Event()
        self._change_lock = anyio.Lock()

    async def _send_to_node(self, body: bytes) -> tuple[int, bytes]:
        return await self._node.daemon_transport(body)

    @property
    def node(self) -> Node:
        return self._node

    @property
    def other_nodes(self) -> Sequence[Rpc]:
        return [node.rpc for node in self._nodes.fit_nodes() if node is not self._node and not node.is_unreachable]

    @asynccontextmanager
    async def decision(self, *, may_change_node: bool = False) -> AsyncIterator[None]:
        """Send every request made inside the `async with` statement to the same node.

        With `may_change_node`, the decision may change the node before its first request. The change waits for running
        decisions, and new decisions wait for the change, so that no decision mixes the answers of two nodes.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._change_lock)
            if may_change_node and self._find_replacement() is not None:
                while self._running_decisions:
                    self._idle = anyio.Event()
                    await self._idle.wait()
                self._change_node()
            else:
                # Release the lock, because only a change of the node must block other decisions.
                await stack.aclose()
            self._running_decisions += 1
            try:
                yield
            except (Retryable, RpcError):
                self._failures += may_change_node
                raise
            else:
                self._failures = 0 if may_change_node else self._failures
            finally:
                self._running_decisions -= 1
                if not self._running_decisions:
                    self._idle.set()

    def _find_replacement(self) -> Node | None:
        """Return another node if the current node is unfit, or if decisions that may change the node failed
        repeatedly."""
        fit = self._nodes.fit_nodes()
        if self._node in fit and not self._node.is_unreachable and self._failures < MAX_FAILURES:
            return None
        return next((node for node in fit if node is not self._node and not node.is_unreachable), None)

    def _change_node(self) -> None:
        node = self._find_replacement()
        if node is not None:
            log.warning("relayer node changed", node=node.name, before=self._node.name)
            self._node, self._failures = node, 0
