"""One node's view for a whole decision, where there are several nodes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.node import FAILURES, Node
from coordinatord.chain.rpc.nodes import Nodes

log = structlog.get_logger(__name__)


class PinnedRpc(Rpc):
    """One node for as long as it is fit, and a change only between decisions: nonces, receipts and simulations of one
    decision are of one chain's view. For the tasks of one relayer."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(self._ask_node)
        self._nodes = nodes
        self._node = nodes.fit()[0]
        self._failed = 0
        self._deciding = 0
        self._idle = anyio.Event()
        self._door = anyio.Lock()

    async def _ask_node(self, body: bytes) -> tuple[int, bytes]:
        return await self._node.own(body)

    @property
    def node(self) -> Node:
        return self._node

    @property
    def others(self) -> Sequence[Rpc]:
        return [node.rpc for node in self._nodes.fit() if node is not self._node and not node.away]

    @asynccontextmanager
    async def decision(self, *, leads: bool = False) -> AsyncIterator[None]:
        """`leads`: it may change the node before it begins, once no other decision is under way; others begin when it
        has ended, so that what they build on was read from the node that they ask."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._door)
            if leads and self._better() is not None:
                while self._deciding:
                    self._idle = anyio.Event()
                    await self._idle.wait()
                self._change()
            else:
                await stack.aclose()  # nobody has to wait for this one
            self._deciding += 1
            try:
                yield
            except (Retryable, RpcError):
                self._failed += leads
                raise
            else:
                self._failed = 0 if leads else self._failed
            finally:
                self._deciding -= 1
                if not self._deciding:
                    self._idle.set()

    def _better(self) -> Node | None:
        """Another node, when this one is not fit, or does not let a leading decision come to its end."""
        fit = self._nodes.fit()
        if self._node in fit and not self._node.away and self._failed < FAILURES:
            return None
        return next((node for node in fit if node is not self._node and not node.away), None)

    def _change(self) -> None:
        node = self._better()
        if node is not None:
            log.warning("relayer goes on with another node", node=node.name, before=self._node.name)
            self._node, self._failed = node, 0
